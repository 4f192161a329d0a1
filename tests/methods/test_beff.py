"""Noise of baselines: fixed points of the definitions, and what one rollout identifies."""

import numpy as np
import pytest

from harness.errors import RunError, StatisticsError
from harness.methods import gs1, rloo, softmax_loo_weights, uniform_loo, uniform_loo_weights
from harness.methods.beff import (
    executed_noise,
    oracle_score_noise,
    within_variance,
)


def noise_of(rewards_P, weights_P_P):
    """The noise of the advantages that these weights give."""
    return executed_noise(rewards_P, gs1(rewards_P, weights_P_P))


def test_uniform_weights_have_the_ratio_one():
    """A kernel that weighs all alike leaves exactly the noise of uniform leave-one-out."""
    pilot = noise_of([1.0, 0.0, 0.0, 1.0], uniform_loo_weights(4))
    assert pilot.ratio == 1.0


def test_pilot_ratio_by_hand():
    """Perfect neighbours leave no noise where uniform weights leave some; the note says so."""
    rewards = [1.0, 1.0, 0.0, 0.0]
    weights = [[0, 0.75, 0.25, 0], [0.75, 0, 0, 0.25], [0.25, 0, 0, 0.75], [0, 0.25, 0.75, 0]]
    pilot = noise_of(rewards, weights)
    assert pilot.uniform == pytest.approx((2 / 3) ** 2)
    assert pilot.kernel == pytest.approx(0.25**2)
    assert pilot.ratio == pytest.approx((2 / 3) ** 2 / 0.25**2)
    assert "needs at least two rollouts" in pilot.note


def test_pilot_noise_is_the_mean_squared_advantage():
    """V(b) of a batch is the mean square of the advantages that the baseline gives."""
    rng = np.random.default_rng(1)
    rewards = rng.integers(0, 2, 20).astype(float)
    weights = softmax_loo_weights(rng.uniform(0, 1, (20, 20)), 0.2)
    pilot = noise_of(rewards, weights)
    assert pilot.uniform == pytest.approx(np.mean(uniform_loo(rewards) ** 2))
    assert pilot.kernel == pytest.approx(np.mean(gs1(rewards, weights) ** 2))


def test_equal_rewards_identify_nothing():
    """With no noise under either baseline the ratio is undefined, not 1 and not 0."""
    assert np.isnan(noise_of([1.0, 1.0, 1.0], uniform_loo_weights(3)).ratio)


def test_oracle_noise_of_binary_rewards():
    """The oracle's noise is the mean of mu(1 - mu), estimated without bias from two rollouts."""
    rng = np.random.default_rng(2)
    mu_N = rng.uniform(0, 1, 40_000)
    rewards_N_2 = (rng.uniform(size=(40_000, 2)) < mu_N[:, None]).astype(float)
    estimate = within_variance(rewards_N_2).mean()
    assert estimate == pytest.approx(np.mean(mu_N * (1 - mu_N)), abs=0.004)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_rloo_is_the_fixed_point_of_its_own_group_size(group):
    """RLOO with groups of G has rho = (G - 1)/G."""
    rng = np.random.default_rng(group)
    mu_N = rng.uniform(0, 1, 60_000)
    rewards_N_G = (rng.uniform(size=(60_000, group)) < mu_N[:, None]).astype(float)
    rho = within_variance(rewards_N_G).mean() / np.square(rloo(rewards_N_G)).mean()
    assert rho == pytest.approx((group - 1) / group, abs=0.005)


def test_score_weighted_oracle_noise_is_unbiased():
    """V_s* from few rollouts, corrected for the noise of mu, hits the exact value."""
    rng = np.random.default_rng(3)
    prompts, rollouts = 60_000, 4
    mu_N = rng.uniform(0.1, 0.9, prompts)
    rewards = (rng.uniform(size=(prompts, rollouts)) < mu_N[:, None]).astype(float)
    # the score is larger on success, so that weighting matters
    squares = np.where(rewards == 1, 3.0, 1.0)
    exact = np.mean(3 * mu_N * (1 - mu_N) ** 2 + (1 - mu_N) * mu_N**2)
    estimate = oracle_score_noise(rewards, squares).mean()
    assert estimate == pytest.approx(exact, abs=0.006)
    mu_of_others = (rewards.sum(axis=1, keepdims=True) - rewards) / (rollouts - 1)
    uncorrected = np.mean((rewards - mu_of_others) ** 2 * squares)
    assert uncorrected - exact > 0.05


def test_score_weighted_oracle_noise_by_hand():
    """The vectorised estimate equals the page's recipe, rollout by rollout."""
    rng = np.random.default_rng(4)
    rewards, squares = rng.normal(size=(5, 4)), rng.uniform(1, 2, (5, 4))
    expected = np.zeros(5)
    for prompt in range(5):
        for i in range(4):
            others = np.delete(rewards[prompt], i)
            error = (rewards[prompt, i] - others.mean()) ** 2 - others.var(ddof=1) / 3
            expected[prompt] += error * squares[prompt, i] / 4
    np.testing.assert_allclose(oracle_score_noise(rewards, squares), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: within_variance([[1.0], [0.0]]),
            r"1 rollout\(s\) per prompt; V\* needs at least 2",
        ),
        (lambda: oracle_score_noise([[1.0, 0.0]], [[1.0, 1.0]]), r"V_s\* needs at least 3"),
    ],
)
def test_what_is_not_identified_is_refused(call, message):
    """Too few rollouts are an error that names their number."""
    with pytest.raises(StatisticsError, match=message):
        call()


def test_nan_reward_in_a_pool_is_named():
    """A NaN in a pool of saved rollouts is an error with its prompt and rollout."""
    with pytest.raises(RunError, match=r"reward at position \(1, 0\) is nan"):
        within_variance([[0.0, 1.0], [float("nan"), 1.0]])


def test_executed_noise_takes_one_advantage_a_rollout():
    """A missing advantage is refused, not broadcast."""
    with pytest.raises(StatisticsError, match="1 advantages for 2 rewards"):
        executed_noise([1.0, 0.0], [0.5])
