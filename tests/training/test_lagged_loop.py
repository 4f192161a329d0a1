"""Arms that lag, over the scripted service: what samples, is logged, and is restored."""

import asyncio
import dataclasses

import pytest
import tinker
from service_doubles import GRPO, STEPS, arm_context, small_experiment
from tinker.types import RequestErrorCategory

from harness.audit.lag import executed_lags
from harness.cards.registration import GradientProbe
from harness.errors import BudgetExceeded, DataError, RunError, ServiceError
from harness.records import advantages_of, tokens_of
from harness.training.checkpoints import delete_checkpoints
from harness.training.loop import train_until
from harness.training.snapshots import Snapshots

CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


@pytest.fixture(name="context")
def _context(words, service, renderer, tmp_path):
    """The context of a lagged arm; `probe` and `client` choose what goes with it."""

    def made(lag=4, folder="store", probe=None, client="service", other=None, **changes):
        experiment = small_experiment(lag)
        registration = experiment.registration.model_copy(update={"gradient_probe": probe})
        if other is not None:  # the arm has no lag, another one has
            specs = [registration.arms[0], registration.arms[1].model_copy(update={"lag": other})]
            registration = registration.model_copy(update={"arms": specs})
        experiment = dataclasses.replace(experiment, registration=registration)
        built = arm_context(experiment, GRPO, words, service, renderer, tmp_path / folder)
        arm = dataclasses.replace(built.arm, loss="ppo", loss_config=CLIP)
        return dataclasses.replace(built, arm=arm, loss_backend=client, **changes)

    return made


def train(context, steps=STEPS, state=None):
    """Train an arm."""
    return asyncio.run(train_until(context, state, steps))


def stored(context):
    """The records of all steps, without what a clock said."""
    return [{**context.entry.read_step(s), "seconds": None} for s in context.entry.steps()]


def stop_at(version):
    """A `before_step` that finds the cap reached before the step after `version` updates."""
    asked = iter(range(STEPS + 1))

    def before_step():
        if next(asked) == version:
            raise BudgetExceeded("wall time 61.0 min has reached 60 min")

    return before_step


@pytest.mark.parametrize("lag", [1, 2, 4])
def test_prints_show_the_registered_lag(context, lag):
    """What each sampler makes of the fixed text is what the learner made of it lag updates ago."""
    lagged = context(lag)
    train(lagged)

    assert executed_lags(stored(lagged)) == [min(step, lag) for step in range(STEPS)]


def test_prints_show_a_lag_that_is_off_by_one(context, monkeypatch):
    """A queue that lets go of a snapshot too early: the records' own numbers look right."""
    original = Snapshots.sampler

    def late(self, step):
        version, _ = original(self, step)
        return version, self.client(min(version + 1, step))

    monkeypatch.setattr(Snapshots, "sampler", late)
    lagged = context(4)
    train(lagged)
    records = stored(lagged)

    assert [r["version"] - r["sampled_version"] for r in records] == [0, 1, 2, 3, 4]
    assert executed_lags(records) == [0, 0, 1, 2, 3]


def test_a_fresh_arm_beside_a_lagged_one_takes_the_same_path(context, service):
    """Lag 0 samples from named snapshots too, so nothing but the lag differs."""
    fresh = context(0, other=4)
    train(fresh)

    assert executed_lags(stored(fresh)) == [0] * STEPS
    assert service.named("snapshot") == []
    assert len(service.named("save_sampler")) == STEPS + 1


def test_without_any_lag_the_first_step_alone_is_printed(context, service):
    """What the service makes of the initial weights, and then only of what a checkpoint keeps."""
    plain = context(0)
    train(plain)

    assert ["fingerprints" in record for record in stored(plain)] == [True, *[False] * (STEPS - 1)]
    assert service.named("forward") == [("forward", version) for version in (0, 2, 4, 5)]


@pytest.mark.parametrize("stop", [1, 3, 4])
@pytest.mark.parametrize("client", ["service", "custom"])
def test_a_resumed_lagged_arm_equals_an_undisturbed_one(context, client, stop):
    """Rollouts, fingerprints, gradient probes and metrics are the same after a stop."""
    probe = GradientProbe(groups=2, every=2)
    undisturbed = context(4, folder="one", probe=probe, client=client)
    train(undisturbed)
    resumed = context(4, folder="two", probe=probe, client=client, before_step=stop_at(stop))
    with pytest.raises(BudgetExceeded):
        train(resumed)

    train(context(4, folder="two", probe=probe, client=client))

    assert stored(resumed) == stored(undisturbed)


@pytest.mark.parametrize("lag", [1, 4])
def test_at_every_checkpoint_the_service_holds_what_a_resumed_arm_needs_and_no_more(
    context, service, lag
):
    """One training checkpoint, the snapshots of the next steps, and none of what probes saved."""
    held = []

    class Watched(type(context(lag).entry)):
        def publish(self, kind, value):
            super().publish(kind, value)
            held.append((value["version"], value))

    probe = GradientProbe(groups=2, every=2)
    lagged = context(lag, probe=probe)
    entry = lagged.entry
    watched = Watched(entry.folder, entry.name, entry.key, entry.parts)
    lagged = dataclasses.replace(lagged, entry=watched)

    state = train(lagged)

    version, checkpoint = held[-1]
    assert [at for at, _ in held] == [2, 4, STEPS]
    assert set(service.saved) == {checkpoint["state_path"], *checkpoint["snapshots"].values()}
    assert sorted(map(int, checkpoint["snapshots"])) == list(
        range(max(0, version - lag), version + 1)
    )
    asyncio.run(delete_checkpoints(service, lagged.entry, state))
    assert service.saved == {}


@pytest.mark.parametrize("what", ["state", "snapshot"])
@pytest.mark.parametrize("says", ["missing", "down"])
def test_what_a_resumed_arm_needs_and_is_gone_is_never_replaced(context, service, what, says):
    """Another snapshot would be another lag: one line names what to delete to start over."""
    train(context(4), steps=2)
    checkpoint = context(4).entry.read("checkpoint")
    gone = checkpoint["state_path"] if what == "state" else checkpoint["snapshots"]["1"]
    category = RequestErrorCategory.User if says == "missing" else RequestErrorCategory.Server

    def refuse(original):
        async def asked(path, *more):
            if path == gone:
                raise tinker.RequestFailedError(f"no {path}", "request", category)
            return await original(path, *more)

        return asked

    for name in (
        "create_training_client_from_state_with_optimizer_async", "create_sampling_client_async",
    ):  # fmt: skip
        setattr(service, name, refuse(getattr(service, name)))

    expected = ServiceError if says == "missing" else tinker.RequestFailedError
    with pytest.raises(expected, match=f"no {gone}") as caught:
        train(context(4))

    if says == "missing":
        assert f"delete {context(4).entry.folder} and run again" in str(caught.value)


@pytest.mark.parametrize("client", ["service", "custom"])
@pytest.mark.parametrize("lag", [0, 4])
def test_a_snapshot_is_asked_for_behind_its_update_and_before_its_answer(
    context, service, lag, client
):
    """It holds the updated weights, and costs no wait of its own."""
    train(context(lag, other=4 if lag == 0 else None, client=client), steps=1)
    calls = [call[0] for call in service.calls]
    saved = [call[1] for call in service.named("save_sampler")]

    first, second = (at for at, call in enumerate(calls) if call == "save_sampler")
    assert saved == [0, 1]
    assert first < calls.index("optim_step") < second < calls.index("await optim_step")


def test_a_snapshot_that_fails_ends_the_next_step(context, service, monkeypatch):
    """Nobody waits for it in its own step, but no step goes on without it."""
    lagged, failing = context(4), service.create_sampling_client_async

    async def create(path, *more):
        if path.endswith("version-000001"):
            raise tinker.TinkerError("no room")
        return await failing(path, *more)

    monkeypatch.setattr(service, "create_sampling_client_async", create)

    with pytest.raises(tinker.TinkerError, match="no room"):
        train(lagged)
    assert lagged.entry.steps() == [0]


def test_the_gradient_probe_leaves_the_arm_alone(context):
    """With and without it an arm samples, grades and updates the same."""
    plain, probed = (
        context(folder="one"),
        context(folder="two", probe=GradientProbe(groups=2, every=1)),
    )
    train(plain)
    train(probed)

    for without, record in zip(stored(plain), stored(probed), strict=True):
        assert record["groups"] == without["groups"]
        assert record["fingerprints"] == without["fingerprints"]
        more = record["metrics"].keys() - without["metrics"].keys()
        assert more
        assert all(name.startswith("probe/") for name in more)


def test_the_gradient_probe_runs_at_every_kth_step_on_fresh_prompts(context, service):
    """Its prompts are no arm's, and its steps have size 0."""
    probed = context(probe=GradientProbe(groups=2, every=2))
    train(probed)

    assert [bool([n for n in r["metrics"] if n.startswith("probe/")]) for r in stored(probed)] == [
        True, False, True, False, True,
    ]  # fmt: skip
    rates = [adam.learning_rate for _, _, adam in service.named("optim_step")]
    assert rates.count(0.0) == 9
    trained = {g["prompt"] for record in stored(probed) for g in record["groups"]}
    far = {probed.train[index].question for index in probed.fresh}
    asked = {question for question in far for r in service.requests if question in r.prompt}
    assert asked == far
    assert not trained & set(probed.fresh)


def test_prompts_of_the_probe_are_counted_before_training(context):
    """20 prompts of the arm and 5 x 10 of the probes are more than the 60 of the split."""
    with pytest.raises(DataError, match="need 20, but the train split has 10 beside 50 held out"):
        train(context(probe=GradientProbe(groups=10, every=1)))


def test_a_sampler_without_prompt_logprobs_is_an_error(context, monkeypatch):
    """An arm whose weights can't be told apart is not trained on trust."""
    from service_doubles import ScriptedSampler

    async def silent(_self, prompt: tinker.ModelInput):
        return [None] * prompt.length

    monkeypatch.setattr(ScriptedSampler, "compute_logprobs_async", silent)
    with pytest.raises(RunError, match="step 0: the sampler does not return the log-probs"):
        train(context())


def test_staleness_is_read_from_the_datums_as_sent(context, monkeypatch):
    """A datum that carries the learner's log-probs shows as a fresh batch, whatever was sampled."""
    from harness.training import datums

    original = datums.step_data

    def sent(groups, advantages):
        data = original(groups, advantages)
        zeros = [datum.loss_fn_inputs["logprobs"].to_numpy() * 0 for datum in data]
        return [
            dataclasses.replace(
                datum,
                loss_fn_inputs={
                    **datum.loss_fn_inputs,
                    "logprobs": tinker.TensorData.from_numpy(row),
                },
            )
            for datum, row in zip(data, zeros, strict=True)
        ]

    monkeypatch.setattr(datums, "step_data", sent)
    lagged = context()
    train(lagged, steps=1)
    metrics = stored(lagged)[0]["metrics"]

    assert metrics["staleness/entropy_behaviour"] == 0.0
    assert metrics["entropy"] != 0.0


def test_field_case_stop_tokens_are_action_tokens(context, service):
    """S03: the sampled stop token carries its rollout's advantage and log-prob."""
    lagged = context()
    train(lagged, steps=1)
    (_, _, data, *_), *_ = service.named("forward_backward")
    groups = stored(lagged)[0]["groups"]
    advantages = [a for g in groups for a in advantages_of(g)]

    for datum, advantage in zip(data, advantages, strict=True):
        assert datum.loss_fn_inputs["target_tokens"].tolist()[-1] == service.stop
        assert datum.loss_fn_inputs["advantages"].tolist()[-1] == pytest.approx(advantage)


def test_field_case_the_trained_ids_are_the_sampled_ids(context, service):
    """S05 and S06: sampler and trainer get one and the same prompt, token for token, uncut."""
    lagged = context()
    train(lagged, steps=1)
    (_, _, data, *_), *_ = service.named("forward_backward")
    groups = stored(lagged)[0]["groups"]
    rows = iter(data)

    for group in groups:
        prompt = lagged.adapter.tokens(lagged.train[group["prompt"]]).to_ints()
        for rollout in group["rollouts"]:
            datum = next(rows)
            assert [*prompt, *tokens_of(rollout)][:-1] == datum.model_input.to_ints()


def test_field_case_no_prompt_is_dropped_for_being_stale_or_slow(context):
    """P12: every prompt of the order is trained on at its step, whatever its lag."""
    lagged = context()
    train(lagged)
    prompts = [g["prompt"] for record in stored(lagged) for g in record["groups"]]

    assert prompts == list(lagged.order[: len(prompts)])


def test_field_case_a_group_holds_one_prompt(context, service):
    """A08: all rollouts that are centred together answer one request of one prompt."""
    lagged = context()
    train(lagged, steps=1)
    record = stored(lagged)[0]

    assert [g["requested"] for g in record["groups"]] == [2] * 4
    assert len({g["prompt"] for g in record["groups"]}) == 4
    assert {r.num_samples for r in service.requests} == {2}
