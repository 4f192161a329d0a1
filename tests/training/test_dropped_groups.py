"""Groups of equal rewards left out of the update, over the scripted service."""

import asyncio
import dataclasses

import pytest
from rollouts import turns_of
from service_doubles import GRPO, STEPS, arm_context, small_experiment

from harness.cards.registration import GradientProbe
from harness.errors import BudgetExceeded
from harness.records import rewards_of
from harness.training.loop import train_until


@pytest.fixture(name="context")
def _context(words, service, renderer, tmp_path):
    """The context of an arm of four groups of two; `drop` is what is registered."""

    def made(drop=True, folder="store", lag=0, probe=None, **changes):
        experiment = small_experiment(lag)
        training = experiment.registration.training.model_copy(
            update={"drop_zero_variance_groups": drop}
        )
        registration = experiment.registration.model_copy(
            update={"training": training, "gradient_probe": probe}
        )
        experiment = dataclasses.replace(experiment, registration=registration)
        built = arm_context(experiment, GRPO, words, service, renderer, tmp_path / folder)
        return dataclasses.replace(built, **changes)

    return made


def train(context, steps=STEPS):
    """Train an arm from where it stands."""
    return asyncio.run(train_until(context, None, steps))


def stored(context):
    """The records of all steps, without what a clock said."""
    return [{**context.entry.read_step(s), "seconds": None} for s in context.entry.steps()]


def equal(_request):
    """Two wrong answers."""
    return ["none", "none"]


def sent(service):
    """How many datums each update was sent."""
    return [len(data) for _, _, data, *_ in service.named("forward_backward")]


def test_the_update_is_sent_the_other_groups_alone(context, service):
    """Datums of groups whose rewards differ, and no others; the record says which were left out."""
    dropping = context()
    train(dropping)
    records = stored(dropping)
    kept = [[len(set(rewards_of(g))) > 1 for g in r["groups"]] for r in records]

    assert {flag for row in kept for flag in row} == {True, False}
    assert sent(service) == [2 * sum(row) for row in kept if any(row)]
    for record, row in zip(records, kept, strict=True):
        assert [group["dropped"] for group in record["groups"]] == [not flag for flag in row]
        assert record["metrics"]["dropped_groups"] == 4 - sum(row)
        assert record["metrics"]["kept/rollouts"] == 2 * sum(row)
        assert record["metrics"]["rollouts"] == 8


def test_learner_logprobs_of_dropped_groups_are_known_too(context, service):
    """Every rollout is stored whole; those left out were scored at the same weights."""
    dropping = context()
    train(dropping, 1)
    (record,) = stored(dropping)

    assert any(group["dropped"] for group in record["groups"])
    for group in record["groups"]:
        for turn in turns_of(group):
            assert len(turn["tokens_T"]) == len(turn["learner_logprobs_T"]) > 0
    # the first is of the fingerprint, the last of the checkpoint
    assert service.named("forward") == [("forward", 0), ("forward", 0), ("forward", 1)]


def test_figures_are_told_before_and_after_the_drop(context):
    """`reward` and the staleness figures of all that was sampled, and under `kept/` of the rest."""
    dropping = context()
    train(dropping, 1)
    (record,) = stored(dropping)
    metrics, groups = record["metrics"], record["groups"]
    kept = [r for g in groups if not g["dropped"] for r in rewards_of(g)]

    assert metrics["kept/reward"] == pytest.approx(sum(kept) / len(kept))
    assert metrics["kept/reward"] != metrics["reward"]
    assert metrics["kept/tokens"] < metrics["tokens"]
    before = {name.partition("/")[2] for name in metrics if name.startswith("staleness/")}
    after = {name.partition("/")[2] for name in metrics if name.startswith("kept/")}
    # some figures are of 0/1 rewards only
    assert after - {"rollouts", "tokens", "reward"} == before
    assert metrics["kept/mass_fraction"] == metrics["staleness/mass_fraction"]


def test_a_step_of_nothing_but_equal_rewards_updates_nothing_and_counts(context, service):
    """No gradient, no optimizer step; the next version is saved with the same weights."""
    service.reply = equal
    dropping = context(lag=1)
    state = train(dropping, 3)
    records = stored(dropping)

    assert state.version == 3
    assert service.named("forward_backward") == service.named("optim_step") == []
    assert [record["metrics"]["updated"] for record in records] == [0.0] * 3
    assert [record["metrics"]["dropped_groups"] for record in records] == [4.0] * 3
    assert [record["sampled_version"] for record in records] == [0, 0, 1]
    reported = [name for name in records[0]["metrics"] if name.startswith("kept/")]
    assert reported == ["kept/rollouts"]
    assert len(service.named("save_sampler")) == 4


def test_a_stopped_arm_with_such_steps_resumes_to_the_same_records(context, service):
    """Steps without an update are part of the sequence like any other."""
    answers = service.reply
    # the second and third steps have equal rewards only, whatever the weights
    flat = {
        index for r in (1, 2) for index in context().order[4 * r : 4 * r + 4]
    }  # fmt: skip
    texts = [context().train[index].question for index in flat]
    service.reply = lambda request: (
        equal(request) if any(t in request.prompt for t in texts) else answers(request)
    )
    undisturbed = context(folder="one", lag=1)
    train(undisturbed)
    asked = iter(range(STEPS + 1))

    def stop():
        if next(asked) == 2:
            raise BudgetExceeded("wall time 61.0 min has reached 60 min")

    with pytest.raises(BudgetExceeded):
        train(context(folder="two", lag=1, before_step=stop))
    resumed = context(folder="two", lag=1)
    train(resumed)

    assert [r["metrics"]["updated"] for r in stored(resumed)] == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert stored(resumed) == stored(undisturbed)


def test_without_the_setting_nothing_is_dropped_or_told(context, service):
    """Other experiments send and record what they always did."""
    plain = context(drop=False)
    train(plain, 2)

    assert sent(service) == [8, 8]
    assert service.named("forward") == [("forward", 0), ("forward", 2)], "fingerprints, no rollout"
    for record in stored(plain):
        assert not any(group["dropped"] for group in record["groups"])
        assert not [n for n in record["metrics"] if n.startswith("kept/") or n == "updated"]


def test_a_gradient_probe_does_not_depend_on_the_drop(context):
    """Groups of equal rewards have no gradient: with them or without, the cosine is the same."""
    probe = GradientProbe(groups=2, every=1)
    probed = []
    for drop in (True, False):
        probing = context(drop=drop, folder=f"drop-{drop}", probe=probe)
        train(probing, 1)
        (record,) = stored(probing)
        probed.append({k: v for k, v in record["metrics"].items() if k.startswith("probe/")})

    assert probed[0] == probed[1]
    assert probed[0]
