"""Offline estimates from saved rollouts: exact fixed points, honest intervals."""

import numpy as np
import pytest

from harness.cards import Kernel
from harness.errors import RunError, StatisticsError
from harness.methods import uniform_loo_weights
from harness.methods.pool import (
    Design,
    difference,
    kernel_baseline,
    no_baseline,
    score_baselines,
    uniform_baseline,
)

TOPICS = 8


def pool(prompts: int, rollouts: int, seed: int):
    """0/1 rewards of prompts in topics: (rewards, mu, similarity), mu mostly the topic's."""
    rng = np.random.default_rng(seed)
    topic_N = np.arange(prompts) % TOPICS
    mu_N = np.clip(np.linspace(0.1, 0.9, TOPICS)[topic_N] + rng.normal(0, 0.05, prompts), 0, 1)
    rewards_N_K = (rng.uniform(size=(prompts, rollouts)) < mu_N[:, None]).astype(float)
    return rewards_N_K, mu_N, (topic_N[:, None] == topic_N[None, :]).astype(float)


def softmax(tau):
    """A softmax kernel; what it does with text is not asked here."""
    text = {"text": "question", "fitted_on": "train_questions", "ngram_range": (1, 2)}
    flags = {"lowercase": True, "sublinear_tf": False, "stop_words": "none"}
    return Kernel(**text, **flags, tau=tau)


def oracle_baseline(mu_N):
    """A baseline that knows every prompt's success rate."""
    return lambda prompts_B, _rewards_B: mu_N[prompts_B]


@pytest.fixture(scope="module")
def scored():
    """One large pool, scored under four baselines."""
    rewards, mu, similarity = pool(2048, 8, seed=0)
    candidates = {
        "none": no_baseline,
        "uniform": uniform_baseline,
        "kernel": kernel_baseline(similarity, softmax(0.1)),
        "oracle": oracle_baseline(mu),
    }
    return score_baselines(rewards, candidates, Design(batch_size=64, seed=1)), mu


def test_fixed_point_no_baseline(scored):
    """Without a baseline rho is E mu(1 - mu) / m for 0/1 rewards."""
    scores, mu = scored
    assert scores["none"].rho.estimate == pytest.approx(
        np.mean(mu * (1 - mu)) / mu.mean(), abs=0.02
    )


def test_fixed_point_batch_mean(scored):
    """For the batch mean rho is E mu(1 - mu) / [m(1 - m)] (B - 1)/B for 0/1 rewards."""
    scores, mu = scored
    m = mu.mean()
    expected = np.mean(mu * (1 - mu)) / (m * (1 - m)) * 63 / 64
    assert scores["uniform"].rho.estimate == pytest.approx(expected, abs=0.02)


def test_fixed_point_oracle(scored):
    """The oracle baseline has rho 1 and makes no error."""
    scores, _ = scored
    assert scores["oracle"].rho.estimate == pytest.approx(1.0, abs=0.02)
    assert scores["oracle"].error == pytest.approx(0.0, abs=0.003)


def test_error_is_what_the_noise_has_above_the_oracle(scored):
    """V(b) = V* + E(mu - b)^2: the error from second rollouts fills the gap."""
    scores, mu = scored
    oracle = np.mean(mu * (1 - mu))
    for name in ("none", "uniform", "kernel"):
        assert scores[name].noise - scores[name].error == pytest.approx(oracle, abs=0.006)
    assert scores["none"].error == pytest.approx(np.mean(mu**2), abs=0.006)


def test_a_kernel_that_knows_the_topics_beats_the_batch_mean(scored):
    """Similar prompts tell the reward: the paired difference of rho is clear of zero."""
    scores, _ = scored
    gain = difference(scores["kernel"].rho, scores["uniform"].rho)
    assert gain.lower > 0.1
    assert gain.lower < gain.estimate < gain.upper


def test_uniform_kernel_scores_as_the_batch_mean():
    """Pairing is exact: two names for one baseline differ by nothing in every resample."""
    rewards, _, similarity = pool(128, 4, seed=2)
    candidates = {
        "uniform": uniform_baseline,
        "flat": lambda _p, r: uniform_loo_weights(len(r)) @ r,
        "huge tau": kernel_baseline(similarity, softmax(1e9)),
    }
    scores = score_baselines(rewards, candidates, Design(batch_size=32))
    for name in ("flat", "huge tau"):
        gap = difference(scores[name].rho, scores["uniform"].rho)
        assert max(abs(gap.lower), abs(gap.upper)) < 1e-7


def test_score_weights_change_the_score():
    """With equal score norms rho_s is close to rho; with unequal ones it follows them."""
    rewards, mu, _ = pool(1024, 8, seed=3)
    candidates = {"uniform": uniform_baseline}
    design = Design(batch_size=64, seed=4)
    flat = score_baselines(rewards, candidates, design, np.ones_like(rewards))["uniform"]
    assert flat.rho_s.estimate == pytest.approx(flat.rho.estimate, abs=0.01)
    squares = 1.0 + 4.0 * rewards
    weighted = score_baselines(rewards, candidates, design, squares)["uniform"]
    m = mu.mean()
    oracle = np.mean(5 * mu * (1 - mu) ** 2 + (1 - mu) * mu**2)
    # the batch mean: r - b has the topic's spread around m and the noise of 63 others
    noise_of_mean = (np.var(mu) + np.mean(mu * (1 - mu))) / 63
    batch = np.mean(5 * mu * ((1 - m) ** 2 + noise_of_mean) + (1 - mu) * (m**2 + noise_of_mean))
    assert weighted.rho_s.estimate == pytest.approx(oracle / batch, abs=0.03)


def test_the_interval_covers_the_spread_of_pools():
    """The bootstrap over prompts is as wide as estimates from independent pools are spread."""
    design = Design(batch_size=32, resamples=200)
    runs = [
        score_baselines(pool(128, 4, seed=seed)[0], {"u": uniform_baseline}, design)["u"].rho
        for seed in range(30)
    ]
    spread = np.std([run.estimate for run in runs], ddof=1)
    bootstrap = np.mean([run.draws.std(ddof=1) for run in runs])
    assert 0.6 < bootstrap / spread < 1.6


def test_one_seed_gives_one_result():
    """Pseudo-batches and bootstrap follow from the design's seed alone."""
    rewards, _, _ = pool(64, 3, seed=5)
    first, again, other = (
        score_baselines(rewards, {"u": uniform_baseline}, Design(batch_size=16, seed=seed))["u"]
        for seed in (7, 7, 8)
    )
    assert first.rho.lower == again.rho.lower
    assert first.noise == again.noise
    assert first.noise != other.noise


def test_every_prompt_is_visited_also_when_batches_do_not_divide_the_pool():
    """A pool that is no multiple of the batch is still scored on all of its prompts."""
    visited = set()

    def watch(prompts_B, rewards_B):
        assert len(set(prompts_B.tolist())) == len(prompts_B) == 10
        visited.update(prompts_B.tolist())
        return uniform_baseline(prompts_B, rewards_B)

    score_baselines(pool(23, 3, seed=6)[0], {"u": watch}, Design(batch_size=10))
    assert visited == set(range(23))


@pytest.mark.parametrize(
    ("shape", "design", "message"),
    [
        ((8, 1), Design(batch_size=4), "V\\* needs at least 2"),
        ((8, 2), Design(batch_size=9), "batch size is 9; it must lie between 2 and the pool's 8"),
        ((8, 2), Design(batch_size=1), "batch size is 1"),
        ((8, 2), Design(batch_size=4, passes=19), "19 passes"),
        ((8, 2), Design(batch_size=4, level=1.0), "at level 1.0"),
    ],
)
def test_pools_and_designs_that_tell_too_little_are_refused(shape, design, message):
    """One rollout a prompt, a batch beyond the pool and too few passes are errors."""
    rewards = np.arange(np.prod(shape)).reshape(shape) % 2
    with pytest.raises(StatisticsError, match=message):
        score_baselines(rewards, {"u": uniform_baseline}, design)


def test_a_pool_without_spread_has_no_rho():
    """If every reward is equal there is no noise to compare, and that is said."""
    with pytest.raises(StatisticsError, match="a resample of the pool has noise 0"):
        score_baselines(np.ones((8, 2)), {"u": uniform_baseline}, Design(batch_size=4))


def test_a_baseline_that_is_not_finite_is_named():
    """A candidate that yields NaN is refused by its name."""
    rewards, _, _ = pool(16, 2, seed=0)
    with pytest.raises(RunError, match="broken baseline at position 0 is nan"):
        score_baselines(
            rewards, {"broken": lambda _p, r: np.full_like(r, np.nan)}, Design(batch_size=4)
        )
