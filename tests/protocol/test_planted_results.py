"""Mistakes in what comes after the first steps: stored steps, request traces, rows and
decisions give them away, over scripted doubles."""

import dataclasses

import pytest
from mistakes.mistake import named
from mistakes.whole_run import MISTAKES, other_groups
from service_doubles import PILOT

from harness.errors import RunError


def taken_to_the_end(run):
    """What is asked of a run before anything is decided."""
    run.train()
    for arm in run.experiment.arms:
        run.arm(arm.name)
    run.base()


@pytest.fixture(name="differing")
def _differing(fakes):
    """Policies that are right on different items, so that exchanged arms can be told apart."""
    models = []

    def reply(request):
        if request.params.temperature > 0:
            return fakes.scripted.by_hash(request)
        models.extend([request.model] if request.model not in models else [])
        (gold,) = (g for question, g in fakes.scripted.gold.items() if question in request.prompt)
        place = request.params.seed % 5
        right = place <= models.index(request.model)
        return ["I do not know" if place == 4 else f"\\boxed{{{gold if right else 1}}}"]

    fakes.scripted.reply = reply


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m.item == "arm"], ids=named)
def test_a_mistake_in_the_run_ends_it(fakes, monkeypatch, mistake):
    """The verdict is not reached, and the line names arm, step or item."""
    if mistake.stage == "resuming":
        fakes.run("another").pilot()
    mistake.edit(monkeypatch)
    run = fakes.run()
    run.pilot()

    with pytest.raises(RunError) as refused:
        taken_to_the_end(run)

    assert mistake.words in str(refused.value)


@pytest.mark.usefixtures("differing")
@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m.item == "decision"], ids=named)
def test_a_decision_on_something_else_is_refused(fakes, monkeypatch, mistake):
    """What does not follow from card and stored rows ends in no verdict."""
    run = fakes.run()
    run.pilot()
    taken_to_the_end(run)
    accuracies = {run.arm(arm.name).accuracy for arm in run.experiment.arms}
    assert len(accuracies) == 2, "arms that are equal can't be told apart"
    assert run.decision().outcomes[run.criteria[0]].estimate is not None
    mistake.edit(monkeypatch)

    with pytest.raises(RunError) as refused:
        run.decision()

    assert mistake.words in str(refused.value)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_sound_run_is_let_through(fakes, lag):
    """Without a mistake nothing is found, in one process or resumed by another."""
    small = fakes.run().experiment
    registration = small.registration
    lagged = [arm.model_copy(update={"lag": lag}) for arm in registration.arms]
    experiment = dataclasses.replace(
        small, registration=registration.model_copy(update={"arms": lagged})
    )
    fakes.keeper("another", experiment=experiment).pilot()
    keeper = fakes.keeper(experiment=experiment)
    keeper.train()

    for arm in experiment.arms:
        assert keeper.summary(arm).n_items == 20
    assert len(keeper.rows(None)) == 20


def test_nothing_is_trained_behind_a_pilot_that_did_something_else(fakes, monkeypatch):
    """What the pilot shows is refused before the rest is paid for."""
    other_groups(monkeypatch)
    run = fakes.run()
    run.pilot()

    with pytest.raises(RunError):
        run.train()

    assert len(fakes.scripted.named("optim_step")) == 2 * PILOT


def test_rollouts_that_share_their_noise_are_named(fakes):
    """A service that gives a group one sample over and over: too much alike for these log-probs."""
    scored = fakes.scripted.scored

    def surprising(text):
        found = scored(text)
        return dataclasses.replace(found, logprobs_np=found.logprobs_np * 100)

    fakes.scripted.sequence = surprising
    fakes.scripted.reply = lambda request: fakes.scripted.by_hash(request)[:1] * request.num_samples
    run = fakes.run()
    run.pilot()

    with pytest.raises(RunError, match="rollouts of one prompt are alike beyond chance"):
        taken_to_the_end(run)
