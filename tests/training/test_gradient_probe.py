import math

import numpy as np
import pytest

from harness.errors import RunError
from harness.training.gradient_probe import cosine_metrics, fresh_arm, reported_norm, still


@pytest.mark.parametrize("seed", range(5))
def test_three_norms_give_the_cosine(seed):
    """|g + h|^2 = |g|^2 + |h|^2 + 2 gh, for random vectors of any length."""
    generator = np.random.Generator(np.random.PCG64(seed))
    g, h = generator.normal(size=50), generator.normal(size=50) * 10.0**seed
    norms = [float(np.linalg.norm(v)) for v in (g, h, g + h)]

    metrics = cosine_metrics("here", *norms)

    expected = float(g @ h) / (norms[0] * norms[1])
    assert metrics["probe/cosine"] == pytest.approx(expected, abs=1e-9 * 10.0**seed)


@pytest.mark.parametrize(("both", "cosine"), [(5.0, 1.0), (1.0, -1.0), (math.sqrt(13.0), 0.0)])
def test_the_ends_and_the_middle(both, cosine):
    """Equal, opposite and orthogonal gradients of norms 2 and 3."""
    assert cosine_metrics("here", 2.0, 3.0, both)["probe/cosine"] == pytest.approx(cosine)


@pytest.mark.parametrize(("batch", "fresh"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_silent_gradient_has_no_direction(batch, fresh):
    """Its norm is recorded, and no cosine is made up."""
    assert cosine_metrics("here", batch, fresh, 1.0).keys() == {
        "probe/norm_batch",
        "probe/norm_fresh",
    }


def test_norms_that_no_gradients_have_are_an_error():
    """A service that reports a clipped or averaged norm is found out."""
    with pytest.raises(RunError, match="arm a: step 3: gradient norms 2, 3 and 9"):
        cosine_metrics("arm a: step 3", 2.0, 3.0, 9.0)


def test_a_service_without_a_norm_is_an_error():
    """What was reported is named."""
    with pytest.raises(RunError, match=r"reports \['lr'\], none of grad_norm"):
        reported_norm("here", {"lr": 0.1})
    assert reported_norm("here", {"unclipped_grad_l2:mean": 2.0}) == 2.0


def test_the_probe_has_a_noise_of_its_own_and_no_lag(small):
    """Its rollouts are fresh, and the arm's own draws are not repeated."""
    arm = small.arms[0]
    fresh = fresh_arm(arm, 2)

    assert (fresh.groups_per_batch, fresh.lag, fresh.group_size) == (2, 0, arm.group_size)
    assert fresh.name != arm.name


def test_a_still_step_moves_nothing():
    """Size 0, and no decay."""
    assert still().learning_rate == 0.0
    assert still().weight_decay == 0.0
