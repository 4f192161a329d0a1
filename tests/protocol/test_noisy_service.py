"""A service that reads the same weights differently each time: honest runs pass, mistakes show."""

import dataclasses

import pytest
from mistakes.whole_run import MISTAKES
from service_doubles import PILOT, STEPS

from harness.errors import RunError
from harness.training.snapshots import Snapshots

NOISE = (5e-3, 1e-3)
"""Nats, of a sampler's log-probs and of a learner's."""


@pytest.fixture(name="noisy")
def _noisy(fakes):
    """The doubles, with that noise."""
    fakes.scripted.noise = NOISE
    return fakes


@pytest.fixture(name="fast")
def _fast(small):
    """The small experiment at a rate that moves log-probs by far more than the noise."""
    return dataclasses.replace(small, learning_rates={"baseline": 0.3, "treatment": 0.3})


def with_lag(experiment, lag):
    """The experiment with all arms lagged."""
    registration = experiment.registration
    arms = [arm.model_copy(update={"lag": lag}) for arm in registration.arms]
    registration = registration.model_copy(update={"arms": arms})
    return dataclasses.replace(experiment, registration=registration)


def taken(keeper):
    """Everything that is asked of arms before the decision; the notes on them."""
    keeper.pilot()
    keeper.train()
    for arm in keeper.experiment.arms:
        keeper.summary(arm)
        keeper.figures(arm)
    keeper.rows(None)
    return "\n".join(keeper.training_notes(keeper.experiment.arms))


@pytest.mark.parametrize("lag", [0, 2])
def test_an_honest_run_is_let_through(noisy, fast, lag):
    """In one process, or resumed by another; what told the weights apart is said."""
    noisy.keeper("another", experiment=with_lag(fast, lag)).pilot()

    notes = taken(noisy.keeper(experiment=with_lag(fast, lag)))

    assert notes.count("so fingerprints tell weights apart from 0.0") == 2


def test_weights_that_noise_hides_are_told_of(noisy, small):
    """Small updates under a large floor: the run passes, and says what was not seen."""
    notes = taken(noisy.keeper(experiment=with_lag(small, 1)))

    assert notes.count(f"{STEPS} of {STEPS} moves between fingerprints are smaller") == 2


def test_a_service_that_repeats_itself_is_told_nothing_of(fakes, small):
    """Without a floor the bounds are those of float32, and no note is added."""
    assert "sampler and learner read" not in taken(fakes.keeper(experiment=with_lag(small, 1)))


@pytest.mark.parametrize(
    "name", ["one_update_early", "always_the_base_model", "always_the_first_arm"]
)
def test_other_weights_are_still_named(noisy, fast, monkeypatch, name):
    """What is further off than the noise is no noise."""
    (mistake,) = (mistake for mistake in MISTAKES if mistake.name == name)
    mistake.edit(monkeypatch)

    with pytest.raises(RunError) as refused:
        taken(noisy.keeper(experiment=fast))

    assert mistake.words in str(refused.value)


def test_another_checkpoint_is_still_named(noisy, fast):
    """The service restores what another arm has saved, which is further off than the noise."""
    noisy.keeper("another", experiment=fast).pilot()
    states = [path for path in noisy.scripted.saved if "/weights/" in path]
    first, second = (noisy.scripted.saved[path] for path in states)
    noisy.scripted.saved.update({states[0]: second, states[1]: first})

    with pytest.raises(RunError, match=f"weights restored after {PILOT} updates differ by"):
        taken(noisy.keeper(experiment=fast))


def test_a_lag_that_is_off_by_one_is_still_named(noisy, fast, monkeypatch):
    """The records' own numbers look right, and so do the requests'."""
    original = Snapshots.sampler

    def late(self, step):
        version, known = original(self, step)
        other = self.client(min(version + 1, step))
        # as a service that serves the wrong weights under the right path
        known._client.weights = other._client.weights
        return version, known

    monkeypatch.setattr(Snapshots, "sampler", late)

    with pytest.raises(
        RunError, match=r"sampled from weights \d updates old, exactly \d registered"
    ):
        taken(noisy.keeper(experiment=with_lag(fast, 2)))
