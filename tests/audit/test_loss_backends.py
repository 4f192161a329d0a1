from pathlib import Path

import numpy as np
import pytest

from harness.audit.loss_backends import (
    BackendProbe,
    NormProbe,
    backend_lines,
    chosen_backend,
    compared_arms,
    norm_lines,
)
from harness.audit.loss_values import LossValue
from harness.cards import load_experiment
from harness.errors import ServiceError
from harness.methods import loss_and_gradient

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
LEARNER, BEHAVIOUR = [-1.0, -0.5, -2.0, -0.3], [-1.5, -0.1, -2.1, -0.9]
ADVANTAGES = [1.0, -0.7, 0.4, -1.0]
MOVE = [0.01, -0.004, 0.007, 0.002]


@pytest.fixture(scope="module", name="either")
def _either():
    """Its arms take a loss of this client, and else the service's."""
    return load_experiment(CARDS / "tailrl_lag4_sensitivity_gsm8k_08b.json", "full")


def only(experiment, *clients):
    """The experiment without a choice of clients, or with another."""
    import dataclasses

    registration = experiment.registration
    specs = [spec.model_copy(update={"loss_backends": clients}) for spec in registration.arms]
    return dataclasses.replace(
        experiment, registration=registration.model_copy(update={"arms": specs})
    )


def probe(client, reported=None, config=None, move=MOVE, refused=None):
    """One client's probe of the clipped loss."""
    value = loss_and_gradient("ppo", LEARNER, BEHAVIOUR, ADVANTAGES, CLIP).value
    return BackendProbe(
        client=client,
        value=LossValue(
            loss="ppo",
            config=config or CLIP,
            logprobs_D_T=[LEARNER],
            behaviour_D_T=[BEHAVIOUR],
            advantages_D_T=[ADVANTAGES],
            reported=value if reported is None else reported,
        ),
        move_T=list(move),
        refused=refused,
    )


SOUND = [probe("service"), probe("custom")]


def test_one_loss_by_two_clients_passes_and_is_said(either):
    """Equal values and equal moves: no problem, and the figures are noted."""
    problems, notes = backend_lines(either, SOUND)

    assert problems == []
    assert "loss ppo: service" in notes[0]
    assert chosen_backend(either.arms[0], SOUND) == "custom"


def test_gradients_that_move_otherwise_are_not_one_loss(either):
    """A clip on one side only gives the same value here and another gradient: refused."""
    other = probe("custom", move=[0.01, -0.004, 0.007, 0.004])

    problems, _ = backend_lines(either, [SOUND[0], other])

    assert "they are not the same loss" in problems[0]


def test_moves_are_one_within_what_the_service_repeats(either):
    """The same difference is noise on one service and another gradient on an exact one."""
    near = [SOUND[0], probe("custom", move=[x + 4e-4 for x in MOVE])]

    assert "they are not the same loss" in backend_lines(either, near)[0][0]
    assert backend_lines(either, near, noise=2e-4)[0] == []
    assert "needed to compare gradients" in backend_lines(either, near, noise=0.1)[0][0]


def test_moves_too_small_to_compare_prove_nothing(either):
    """A comparison that could not fail is none."""
    still = [probe(client, move=[0.0] * 4) for client in ("service", "custom")]

    assert "needed to compare gradients" in backend_lines(either, still)[0][0]


def swapped():
    """The loss of a client that clips at 0.8 above and 1.2 below."""
    ratio, advantages = np.exp(np.subtract(LEARNER, BEHAVIOUR)), np.asarray(ADVANTAGES)
    clipped = np.minimum(np.maximum(ratio, 1.2), 0.8)
    return float(-np.minimum(ratio * advantages, clipped * advantages).sum())


@pytest.mark.parametrize("clients", [("custom", "service"), ("custom",)])
def test_a_client_with_swapped_bounds_is_never_passed_over(either, clients):
    """Its value gives it away, and a fallback is no cure for a wrong loss."""
    probes = [SOUND[0], probe("custom", reported=swapped())]

    problems, _ = backend_lines(only(either, *clients), probes)

    assert problems[0].startswith("custom client: loss ppo: the service reports")


def test_a_wrong_loss_that_no_arm_uses_is_only_said(either):
    """A service whose own clipped loss is another one can still compute this client's."""
    probes = [probe("service", reported=swapped()), SOUND[1]]

    problems, notes = backend_lines(only(either, "custom"), probes)

    assert problems == []
    assert notes[0].startswith("service client: loss ppo")


REFUSED = [SOUND[0], probe("custom", refused="BadRequestError: weights must not be negative")]


def test_a_refused_client_is_passed_over_where_the_registration_allows_it(either):
    """The service's own loss steps in, and that is said."""
    problems, notes = backend_lines(either, REFUSED)

    assert problems == []
    assert any("falls back to service, as registered" in note for note in notes)
    assert chosen_backend(either.arms[0], REFUSED) == "service"


def test_without_a_registered_fallback_there_is_none(either):
    """An arm that lists one client alone is refused before anything is trained."""
    alone = only(either, "custom")

    assert "none of its loss backends (custom) works" in backend_lines(alone, REFUSED)[0][0]
    with pytest.raises(ServiceError, match="none of custom computes ppo"):
        chosen_backend(alone.arms[0], REFUSED)


def test_a_client_that_was_not_probed_does_not_pass(either):
    """Evidence that was not collected is none."""
    assert backend_lines(only(either, "custom"), [SOUND[0]])[0]


def test_losses_without_a_clip_are_not_compared():
    """Experiments with the stock loss alone make no further request."""
    stock = load_experiment(CARDS / "tailrl_lag4_accuracy_gsm8k_08b.json", "embedded")

    assert compared_arms(stock) == []
    assert backend_lines(stock, []) == ([], [])


def test_norms_of_real_gradients_pass():
    """Doubling doubles, and a sum and a difference obey the parallelogram law."""
    g, h = np.array([1.0, 2.0, -1.0]), np.array([0.5, -1.0, 3.0])
    norms = {
        "one": g, "two_copies": 2 * g, "other": h, "sum": g + h, "difference": g - h,
    }  # fmt: skip
    made = NormProbe(**{name: float(np.linalg.norm(v)) for name, v in norms.items()})

    assert norm_lines(made) == []
    averaged = made.model_copy(update={"two_copies": made.one})
    assert "two copies" in norm_lines(averaged)[0]
    clipped = made.model_copy(update={"sum": 1.0})
    assert "|g+h|^2 + |g-h|^2" in norm_lines(clipped)[0]
    assert "none was reported" in norm_lines(None)[0]
