import asyncio
import dataclasses
import math

import numpy as np
import pytest
import tinker
from service_doubles import CHECKPOINT_EVERY, GRPO, GS1, STEPS, arm_context, small_experiment

from harness.errors import BudgetExceeded, DataError, RunError
from harness.records import GroupRecord, Rollout, Turn
from harness.training.loop import train_until

NAMES = ("forward_backward", "optim_step", "await forward_backward", "await optim_step", "snapshot")


@pytest.fixture
def context(small, words, service, renderer, tmp_path):
    """The context of an arm; keyword arguments replace parts of it."""

    def made(name=GRPO, experiment=small, folder="store", **changes):
        built = arm_context(experiment, name, words, service, renderer, tmp_path / folder)
        return dataclasses.replace(built, **changes)

    return made


def train(context, steps=STEPS, state=None):
    """Train an arm."""
    return asyncio.run(train_until(context, state, steps))


def stored(context):
    """The records of all steps, without what a clock said."""
    steps = context.entry.steps()
    return [{**context.entry.read_step(step), "seconds": None} for step in steps]


def stop_at(version):
    """A `before_step` that finds the cap reached before the step after `version` updates."""
    asked = iter(range(STEPS + 1))

    def before_step():
        if next(asked) == version:
            raise BudgetExceeded("wall time 61.0 min has reached 60 min")

    return before_step


def test_both_requests_are_under_way_before_either_is_awaited(context, service):
    """An update is one round trip: forward_backward and optim_step first, then their results."""
    train(context(), steps=1)

    calls = [call[0] for call in service.calls if call[0] in NAMES]

    assert calls == ["snapshot", *NAMES]


def test_the_snapshot_is_taken_after_the_update(context, service):
    """Step t samples from the weights after t updates."""
    train(context(), steps=3)

    assert service.named("snapshot") == [("snapshot", version) for version in range(4)]
    models = [request.model for request in service.requests]
    assert models == ["after-0"] * 4 + ["after-1"] * 4 + ["after-2"] * 4


def test_a_fresh_arm_starts_as_registered(context, service, small):
    """Base model, rank, init seed and the trained matrices are what card and registration say."""
    train(context(), steps=1)

    flags = (("train_attn", True), ("train_mlp", True), ("train_unembed", True))
    created = ("create", small.card.base_model, small.card.lora_rank, 0, flags)
    assert service.named("create") == [created]


def test_adam_is_sent_as_registered_with_every_update(context, service, small):
    """The learning rate is the arm's, all else the registration's."""
    train(context(), steps=2)
    adam = small.registration.training.adam

    for _, _, sent in service.named("optim_step"):
        assert sent == tinker.AdamParams(
            learning_rate=small.arm(GRPO).learning_rate, **adam.model_dump()
        )


def test_loss_and_its_configuration_are_the_arms(context, service):
    """A loss without settings is sent with none, one with settings with a copy of them."""
    plain = context()
    clipped = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    ppo = dataclasses.replace(plain.arm, loss="ppo", loss_config=clipped)

    train(plain, steps=1)
    train(context(folder="other", arm=ppo), steps=1)

    sent = [(call[3], call[4]) for call in service.named("forward_backward")]
    assert sent == [("importance_sampling", None), ("ppo", clipped)]


@pytest.mark.parametrize(("name", "prompts", "size"), [(GRPO, 4, 2), (GS1, 8, 1)])
def test_every_step_takes_the_next_stretch_of_the_order(context, name, prompts, size):
    """Prompts are drawn once each, in the fixed order; every step has the batch size's rollouts."""
    arm = context(name)

    train(arm)

    drawn = [group["prompt"] for record in stored(arm) for group in record["groups"]]
    assert drawn == list(arm.order[: prompts * STEPS])
    assert all(
        len(group["rollouts"]) == group["requested"] == size
        for record in stored(arm)
        for group in record["groups"]
    )


def test_records_hold_what_the_datums_carried(context, service):
    """Advantages, tokens and log-probs in the record are those that were sent, row for row."""
    arm = context()

    train(arm, steps=1)

    (_, _, data, _, _) = service.named("forward_backward")[0]
    (record,) = stored(arm)
    rollouts = [rollout for group in record["groups"] for rollout in group["rollouts"]]
    assert len(rollouts) == len(data) == 8
    for rollout, datum in zip(rollouts, data, strict=True):
        (turn,) = rollout["turns"]
        tokens, n = turn["tokens_T"], len(turn["tokens_T"])
        sent = {key: tensor.tolist() for key, tensor in datum.loss_fn_inputs.items()}
        assert sent["target_tokens"][-n:] == tokens
        assert sent["logprobs"][-n:] == pytest.approx(turn["logprobs_T"])
        assert sent["advantages"][-n:] == pytest.approx([rollout["advantage"]] * n)
        assert turn["learner_logprobs_T"] == pytest.approx([-(token % 5) / 4 for token in tokens])


@pytest.mark.parametrize("name", [GRPO, GS1])
@pytest.mark.parametrize("drop", [True, False])
def test_a_single_reply_is_an_episode_of_one_turn(context, service, name, drop):
    """Whatever the group's size, and whether groups are dropped: one shape, one seed a group."""
    arm = context(name)
    training = arm.registration.training.model_copy(update={"drop_zero_variance_groups": drop})
    registration = arm.registration.model_copy(update={"training": training})

    train(dataclasses.replace(arm, registration=registration), steps=1)

    (record,) = stored(arm)
    asked = sorted(request.params.seed for request in service.requests)
    seeds = []
    for group in record["groups"]:
        assert group.keys() == GroupRecord.__annotations__.keys()
        assert {len(rollout["turns"]) for rollout in group["rollouts"]} == {1}
        for rollout in group["rollouts"]:
            assert rollout.keys() == Rollout.__annotations__.keys()
            assert rollout["scores"].keys() == {"correct", "format"}
            assert rollout["turns"][0].keys() == Turn.__annotations__.keys()
        (seed,) = {rollout["turns"][0]["seed"] for rollout in group["rollouts"]}
        seeds.append(seed)
    assert sorted(seeds) == asked
    figures = {k: v for k, v in record["metrics"].items() if "turn=0/k" in k}
    assert figures
    assert all(record["metrics"][k.replace("turn=0/", "")] == v for k, v in figures.items())
    assert not any("turn=1/" in k for k in record["metrics"])


def test_a_step_counts_once(context):
    """Records are keyed by step, numbered from 0, each told to `after_step` once."""
    reported = []
    arm = context(after_step=lambda record: reported.append(record["step"]))

    train(arm)

    assert reported == arm.entry.steps() == list(range(STEPS))
    assert [record["version"] for record in stored(arm)] == list(range(STEPS))


def test_checkpoints_stand_at_the_cadence_and_at_the_end(context, service):
    """Every `checkpoint_every` updates and after the last; the store names the latest."""
    arm = context()

    train(arm)

    assert [call[1] for call in service.named("save_state")] == [2, 4, 5]
    assert arm.entry.read("checkpoint")["version"] == STEPS


def test_the_store_learns_of_a_checkpoint_after_the_service(context, service, monkeypatch):
    """The path is published only once the service has said that the state is saved."""
    arm = context()
    publish = type(arm.entry).publish

    def noted(entry, kind, value):
        service.calls.append(("publish", kind))
        publish(entry, kind, value)

    monkeypatch.setattr(type(arm.entry), "publish", noted)
    train(arm, steps=1)

    calls = [call[0] for call in service.calls]
    assert calls.index("await save_state") < calls.index("publish")


def test_a_finished_stretch_does_nothing_again(context, service):
    """Asking for steps that are there samples nothing and saves nothing."""
    arm = context()
    train(arm, steps=2)
    before = len(service.requests), len(service.named("save_state"))

    state = train(arm, steps=2)

    assert state.version == 2
    assert (len(service.requests), len(service.named("save_state"))) == before


def test_pilot_and_rest_are_one_arm(context):
    """Going on with the live client gives the records of an arm trained in one go."""
    whole, parts = context(), context(folder="parts")

    train(whole)
    train(parts, steps=STEPS, state=train(parts, steps=2))

    assert stored(parts) == stored(whole)


@pytest.mark.parametrize("lag", [0, 1, 4])
@pytest.mark.parametrize("name", [GRPO, GS1])
def test_a_resumed_arm_repeats_only_later_steps_and_agrees(context, service, name, lag):
    """Killed after step 3, resumed from the checkpoint at 2: steps 2.. again, records identical."""
    experiment = small_experiment(lag)
    whole = context(name, experiment)
    killed = context(name, experiment, folder="killed")
    train(whole)

    def die(record):
        if record["step"] == 3:
            # before the checkpoint of the same update: as a kill would leave it
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(killed, after_step=die))
    assert killed.entry.read("checkpoint")["version"] == CHECKPOINT_EVERY
    reported = []
    train(dataclasses.replace(killed, after_step=lambda record: reported.append(record["step"])))

    assert reported == [2, 3, 4]
    assert len(service.named("restore")) == 1
    assert stored(killed) == stored(whole)


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_records_name_the_version_that_sampled(context, lag):
    """Executed lag is counted from records: step minus sampled version, after the ramp."""
    arm = context(experiment=small_experiment(lag))

    train(arm)

    assert [record["sampled_version"] for record in stored(arm)] == [
        max(0, step - lag) for step in range(STEPS)
    ]


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_reached_cap_leaves_a_checkpoint_at_that_version(context, version):
    """BudgetExceeded before a step: all earlier steps are recorded, and the arm can go on.

    Before the first one there is nothing to go on from.
    """
    arm = context(before_step=stop_at(version))

    with pytest.raises(BudgetExceeded, match=r"61\.0 min"):
        train(arm)

    checkpoint = arm.entry.read("checkpoint")
    assert (0 if checkpoint is None else checkpoint["version"]) == version
    assert arm.entry.steps() == list(range(version))


def test_too_few_prompts_are_refused_before_anything_is_sent(context, service):
    """5 steps of 4 prompts need 20; with 19 the arm does not start."""
    arm = context()

    with pytest.raises(
        DataError, match=r"5 steps of 4 prompts need 20, but the train split has 19"
    ):
        train(dataclasses.replace(arm, order=arm.order[:19]))
    assert service.calls == []

    train(dataclasses.replace(arm, order=arm.order[:20]))


def test_a_nan_reward_stops_the_arm_with_nothing_sent(context, service, monkeypatch):
    """Arm, step, train item and rollout are named, and no gradient has reached the service."""
    from tinker_cookbook.rl.types import TrajectoryGroup

    arm = context()
    monkeypatch.setattr(TrajectoryGroup, "get_total_rewards", lambda _group: [0.0, math.nan])

    with pytest.raises(
        RunError, match=rf"arm {GRPO}: step 0, train item {arm.order[0]}, rollout 1: .* nan"
    ):
        train(arm)

    assert not service.named("forward_backward")
    assert not service.named("optim_step")
    assert arm.entry.steps() == []


def short_rows(rows):
    """One log-prob too few in the first row."""
    (key, tensor), *_ = rows[0].items()
    return [{key: tinker.TensorData.from_numpy(tensor.to_numpy()[1:])}, *rows[1:]]


def nan_rows(rows):
    """A NaN in the last row."""
    values = np.full_like(rows[-1]["logprobs"].to_numpy(), np.nan)
    return [*rows[:-1], {"logprobs": tinker.TensorData.from_numpy(values)}]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda rows: rows[:-1], "for 7 datums, .* for 8 were sent"),
        (short_rows, "one a target"),
        (nan_rows, "a learner log-prob is not a finite number"),
    ],
)
def test_learner_logprobs_that_do_not_fit_are_an_error(context, service, outputs, message):
    """A service that returns too little or NaN is named with arm and step; no record is kept."""
    service.outputs = outputs
    arm = context()

    with pytest.raises(RunError, match=rf"arm {GRPO}: step 0: .*{message}"):
        train(arm)

    assert arm.entry.steps() == []


def test_a_metric_of_the_service_that_is_nan_is_an_error(context, service):
    """A loss of NaN ends the arm, with arm, step and metric named."""
    service.metrics = {"loss:sum": math.nan}

    with pytest.raises(RunError, match=rf"arm {GRPO}: step 0: metric service/loss:sum is nan"):
        train(context())


def test_two_arms_on_one_service_do_not_meet(context):
    """The records of an arm are the same whether another arm trains in between or not."""
    alone, first, second = context(), context(folder="both"), context(GS1, folder="both")
    train(alone)

    state = train(first, steps=2)
    train(second)
    train(first, state=state)

    assert stored(first) == stored(alone)
