"""Offline estimates of rho and B_eff from saved rollouts: N prompts with K rollouts each.

All rollouts of a pool come from one frozen policy: same checkpoint, temperature, stop list and
grader. A kernel is tuned on other prompts. Pseudo-batches of the registered size are drawn, one
rollout a prompt and no prompt twice, and every baseline is scored on the same pseudo-batches. The
interval is a bootstrap over prompts, never over rollouts. The definitions are those of
`harness.methods.beff`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import StatisticsError
from harness.methods.advantages import baselines
from harness.methods.arrays import FloatArray, IntArray, finite, same_shape
from harness.methods.beff import oracle_score_noise, within_variance
from harness.methods.kernels import KernelSettings, kernel_loo_weights, uniform_loo_weights

# from the prompts of a batch (their places in the pool) and its rewards to its baselines
Baseline = Callable[[IntArray, FloatArray], FloatArray]

MIN_PASSES = 20


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap percentile interval, and the draws behind it."""

    estimate: float
    lower: float
    upper: float
    draws: FloatArray


@dataclass(frozen=True)
class BaselineScore:
    """How one baseline fares on a pool.

    `noise` is V(b); `error` is E(mu - b)^2, estimated without bias from second rollouts. `rho_s`
    is None where no score norms were given.
    """

    noise: float
    error: float
    rho: Interval
    rho_s: Interval | None


@dataclass(frozen=True)
class Design:
    """How a pool is read: pseudo-batch size, passes over the pool, bootstrap and its level."""

    batch_size: int
    passes: int = MIN_PASSES
    resamples: int = 1000
    level: float = 0.95
    seed: int = 0


def score_baselines(
    rewards_N_K: ArrayLike,
    candidates: Mapping[str, Baseline],
    design: Design,
    squared_scores_N_K: ArrayLike | None = None,
) -> dict[str, BaselineScore]:
    """Score baselines on the same pseudo-batches of a pool.

    Args:
        rewards_N_K: N >= batch_size prompts with K >= 2 rollouts each.
        candidates: a baseline by name. It sees the rewards of a batch and must not let a rollout's
            own reward into its baseline.
        design: batch size, at least 20 passes, bootstrap.
        squared_scores_N_K: |s|^2 of each rollout or a proxy of it, for rho_s; needs K >= 3.

    Raises:
        RunError: a reward, a score norm or a baseline is NaN or infinite.
        StatisticsError: K or N is too small, shapes differ, or the design makes no sense.
    """
    rewards = finite(rewards_N_K, "reward", ndim=2)
    _refuse_design(design, prompts=len(rewards))
    oracle_N = within_variance(rewards)
    scores = None
    if squared_scores_N_K is not None:
        scores = finite(squared_scores_N_K, "squared score norm", ndim=2)
        score_oracle_N = oracle_score_noise(rewards, scores)

    batch_seed, bootstrap_seed = np.random.SeedSequence(design.seed).spawn(2)
    sums = {name: _Sums(len(rewards)) for name in candidates}
    rng = np.random.default_rng(batch_seed)
    for prompts_B, first_B, second_B in _pseudo_batches(rng, rewards.shape, design):
        rewards_B, again_B = rewards[prompts_B, first_B], rewards[prompts_B, second_B]
        weight_B = None if scores is None else scores[prompts_B, first_B]
        for name, baseline in candidates.items():
            baseline_B = finite(baseline(prompts_B, rewards_B), f"{name} baseline", ndim=1)
            same_shape(f"{name} baselines", rewards_B.shape, baseline_B)
            sums[name].add(prompts_B, rewards_B - baseline_B, again_B - baseline_B, weight_B)

    counts_R_N = _bootstrap_counts(np.random.default_rng(bootstrap_seed), len(rewards), design)
    results = {}
    for name, total in sums.items():
        rho_s = None
        if scores is not None:
            score_noise_N = total.score_noise_N / total.visits_N
            rho_s = _ratio(score_oracle_N, score_noise_N, counts_R_N, design.level)
        noise_N = total.noise_N / total.visits_N
        results[name] = BaselineScore(
            noise=float(noise_N.mean()),
            error=float((total.error_N / total.visits_N).mean()),
            rho=_ratio(oracle_N, noise_N, counts_R_N, design.level),
            rho_s=rho_s,
        )
    return results


def difference(left: Interval, right: Interval, level: float = 0.95) -> Interval:
    """left - right, paired: both were bootstrapped on the same resampled prompts.

    Raises:
        StatisticsError: the two come from different numbers of resamples.
    """
    same_shape("bootstrap draws", left.draws.shape, right.draws)
    return _interval(left.estimate - right.estimate, left.draws - right.draws, level)


def no_baseline(_prompts_B: IntArray, rewards_B: FloatArray) -> FloatArray:
    """b = 0: the plain reward."""
    return np.zeros_like(rewards_B)


def uniform_baseline(_prompts_B: IntArray, rewards_B: FloatArray) -> FloatArray:
    """b_i: the mean of the batch's other rewards."""
    return baselines(rewards_B, uniform_loo_weights(len(rewards_B)))


def kernel_baseline(similarity_N_N: ArrayLike, kernel: KernelSettings) -> Baseline:
    """b_i: the kernel-weighted mean of the batch's other rewards, as the GS1 arms compute it.

    Args:
        similarity_N_N: similarity of every two prompts of the pool.
        kernel: what it makes of similarities.
    """
    similarity = finite(similarity_N_N, "similarity", ndim=2)

    def baseline(prompts_B: IntArray, rewards_B: FloatArray) -> FloatArray:
        weights_B_B = kernel_loo_weights(similarity[np.ix_(prompts_B, prompts_B)], kernel)
        return baselines(rewards_B, weights_B_B)

    return baseline


class _Sums:
    """Per prompt: how often it was drawn, and sums of what its draws left."""

    def __init__(self, prompts: int) -> None:
        self.visits_N = np.zeros(prompts)
        self.noise_N = np.zeros(prompts)
        self.error_N = np.zeros(prompts)
        self.score_noise_N = np.zeros(prompts)

    def add(
        self,
        prompts_B: IntArray,
        left_B: FloatArray,
        left_again_B: FloatArray,
        weight_B: FloatArray | None,
    ) -> None:
        # no prompt stands in a batch twice, so plain indexing adds every draw
        self.visits_N[prompts_B] += 1
        self.noise_N[prompts_B] += left_B**2
        self.error_N[prompts_B] += left_B * left_again_B
        if weight_B is not None:
            self.score_noise_N[prompts_B] += left_B**2 * weight_B


def _pseudo_batches(
    rng: np.random.Generator, shape: tuple[int, ...], design: Design
) -> list[tuple[IntArray, IntArray, IntArray]]:
    """(prompts, a rollout of each, another rollout of each); every pass visits every prompt."""
    prompts, rollouts = shape
    size = design.batch_size
    batches = []
    for _ in range(design.passes):
        order_N = rng.permutation(prompts)
        for start in range(0, prompts, size):
            # the last batch is filled up from the start of the pass
            prompts_B = np.take(order_N, np.arange(start, start + size), mode="wrap")
            first_B = rng.integers(rollouts, size=size)
            second_B = (first_B + rng.integers(1, rollouts, size=size)) % rollouts
            batches.append((prompts_B, first_B, second_B))
    return batches


def _bootstrap_counts(rng: np.random.Generator, prompts: int, design: Design) -> FloatArray:
    """How often each prompt is in each resample, shape (R, N)."""
    even_N = np.full(prompts, 1.0 / prompts)
    return rng.multinomial(prompts, even_N, size=design.resamples).astype(np.float64)


def _ratio(
    oracle_N: FloatArray, noise_N: FloatArray, counts_R_N: FloatArray, level: float
) -> Interval:
    noise_R = counts_R_N @ noise_N
    if noise_R.min() <= 0:
        raise StatisticsError(
            "a resample of the pool has noise 0; rho needs rewards that differ in most prompts; "
            "use a larger or more varied pool"
        )
    draws_R = (counts_R_N @ oracle_N) / noise_R
    return _interval(float(oracle_N.sum() / noise_N.sum()), draws_R, level)


def _interval(estimate: float, draws_R: FloatArray, level: float) -> Interval:
    tail = (1 - level) / 2
    lower, upper = np.quantile(draws_R, [tail, 1 - tail])
    return Interval(estimate, float(lower), float(upper), draws_R)


def _refuse_design(design: Design, prompts: int) -> None:
    if not 2 <= design.batch_size <= prompts:
        raise StatisticsError(
            f"batch size is {design.batch_size}; it must lie between 2 and the pool's {prompts} "
            "prompts; save more prompts"
        )
    if design.passes < MIN_PASSES:
        raise StatisticsError(f"{design.passes} passes over the pool; make at least {MIN_PASSES}")
    if design.resamples < 1 or not 0 < design.level < 1:
        raise StatisticsError(
            f"{design.resamples} resamples at level {design.level}; give at least 1 and a level "
            "between 0 and 1"
        )
