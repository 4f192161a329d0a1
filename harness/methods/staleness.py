"""How far a learner has moved from the policy that sampled its batch, before it is updated.

Everything is computed in float64 over action tokens only, from the log-probs p of the learner (at
the weights that the loss is evaluated at) and q of the behaviour policy: r = exp(p - q).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import StatisticsError
from harness.methods.arrays import BoolArray, FloatArray, IntArray, finite, same_shape
from harness.methods.losses import clip_active, importance_ratio


@dataclass(frozen=True)
class Batch:
    """The action tokens of one step, and the complete groups that they come from.

    `rollout_T` says which rollout a token belongs to: rollouts are counted through all groups in
    order, so with groups of G rollout g of group p is p * G + g. Groups are those before any
    filtering; a filtered rollout has no tokens.
    """

    learner_T: FloatArray
    behaviour_T: FloatArray
    advantages_T: FloatArray
    rollout_T: IntArray
    rewards: Sequence[FloatArray]

    @classmethod
    def of(
        cls,
        learner_T: ArrayLike,
        behaviour_T: ArrayLike,
        advantages_T: ArrayLike,
        rollout_T: ArrayLike,
        rewards: Sequence[ArrayLike],
    ) -> "Batch":
        """A checked batch from plain sequences; `rewards` holds one sequence per group.

        Raises:
            RunError: a number, or an importance ratio, is NaN or infinite.
            StatisticsError: shapes differ, or a token names a rollout that does not exist.
        """
        learner = finite(learner_T, "learner log-prob", ndim=1)
        behaviour = finite(behaviour_T, "behaviour log-prob", ndim=1)
        advantages = finite(advantages_T, "advantage", ndim=1)
        places = finite(rollout_T, "rollout place", ndim=1)
        same_shape("advantages", learner.shape, advantages)
        same_shape("rollout places", learner.shape, places)
        importance_ratio(learner, behaviour)
        rollout = places.astype(np.int64)
        groups = [finite(group, "reward", ndim=1) for group in rewards]
        rollouts = sum(map(len, groups))
        if rollout.min() < 0 or rollout.max() >= rollouts:
            raise StatisticsError(
                f"rollout indices run from {rollout.min()} to {rollout.max()}, but the groups hold "
                f"{rollouts} rollouts; count rollouts through all groups from 0"
            )
        return cls(learner, behaviour, advantages, rollout, groups)

    @property
    def ratio_T(self) -> FloatArray:
        """r = exp(p - q) of each token."""
        return importance_ratio(self.learner_T, self.behaviour_T)


@dataclass(frozen=True)
class RatioStats:
    """Distribution of the importance ratio over tokens; quantiles interpolate linearly."""

    tokens: int
    mean: float
    p1: float
    p5: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class KlEstimates:
    """Token means of three estimates of KL(behaviour || learner), from behaviour samples.

    k1 = -log r is unbiased and signed; k2 = (log r)^2 / 2 is biased and at least 0;
    k3 = r - 1 - log r is unbiased and at least 0, with a heavy tail where r is large.

    Source: Schulman 2020, "Approximating KL divergence".
    """

    k1: float
    k2: float
    k3: float


@dataclass(frozen=True)
class TurnFigures:
    """KL, clipping and ratio quantiles over the tokens of one turn of all episodes.

    Late turns are of long episodes alone: `trajectories` counts those that had the turn. p1 and p99
    are None of fewer than `TAIL_TOKENS` tokens.
    """

    tokens: int
    trajectories: int
    kl_k1: float
    kl_k2: float
    kl_k3: float
    clip_raw: float
    ratio_p1: float | None
    ratio_p5: float
    ratio_p95: float
    ratio_p99: float | None


TAIL_TOKENS = 200
"""Tokens of which a first or last percentile is reported; of fewer it would be an extreme."""


@dataclass(frozen=True)
class ClipFractions:
    """Share of tokens whose ratio is outside the bounds, and of those that the clip silences.

    `raw` is blind to the advantage's sign; `active` is A > 0 and r > high, or A < 0 and r < low.
    """

    raw: float
    active: float


@dataclass(frozen=True)
class Entropies:
    """Token means in nats, from behaviour samples.

    `behaviour` = -mean q estimates the behaviour policy's entropy. `cross` = -mean p is the
    learner's cross-entropy on those samples, not its own entropy.
    """

    behaviour: float
    cross: float


def ratio_stats(batch: Batch) -> RatioStats:
    """Mean, p1, p5, p95, p99 and maximum of the importance ratio over action tokens."""
    ratio_T = batch.ratio_T
    p1, p5, p95, p99 = np.quantile(ratio_T, [0.01, 0.05, 0.95, 0.99]).tolist()
    return RatioStats(
        tokens=ratio_T.size,
        mean=float(ratio_T.mean()),
        p1=p1,
        p5=p5,
        p95=p95,
        p99=p99,
        max=float(ratio_T.max()),
    )


def kl_estimates(batch: Batch) -> KlEstimates:
    """k1, k2 and k3 of KL(behaviour || learner), means over action tokens."""
    log_ratio_T = batch.learner_T - batch.behaviour_T
    # expm1 keeps the digits of r - 1 where r is close to 1
    return KlEstimates(
        k1=float(-log_ratio_T.mean()),
        k2=float(0.5 * np.square(log_ratio_T).mean()),
        k3=float((np.expm1(log_ratio_T) - log_ratio_T).mean()),
    )


def clip_fractions(batch: Batch, low: float, high: float) -> ClipFractions:
    """Raw and active clip fraction over action tokens, with absolute bounds of the ratio.

    Raises:
        StatisticsError: the bounds do not hold 1 between them.
    """
    ratio_T = batch.ratio_T
    outside_T = (ratio_T < low) | (ratio_T > high)
    return ClipFractions(
        raw=float(outside_T.mean()), active=float(active_clip(batch, low, high).mean())
    )


def by_turn(batch: Batch, turns_T: IntArray, low: float, high: float) -> dict[int, TurnFigures]:
    """The figures of each turn that has a token, in the order of turns.

    Args:
        batch: the action tokens.
        turns_T: the turn of each of them, from 0.
        low: lower bound of the ratio.
        high: upper bound of the ratio.

    Raises:
        StatisticsError: turns are not one a token, or the bounds make no sense.
    """
    same_shape("turns", batch.learner_T.shape, turns_T.astype(np.float64))
    found = {}
    for turn in np.unique(turns_T).tolist():
        here_T = turns_T == turn
        part = Batch(
            batch.learner_T[here_T],
            batch.behaviour_T[here_T],
            batch.advantages_T[here_T],
            batch.rollout_T[here_T],
            batch.rewards,
        )
        ratios, kl = ratio_stats(part), kl_estimates(part)
        tails = ratios.tokens >= TAIL_TOKENS
        found[int(turn)] = TurnFigures(
            tokens=ratios.tokens,
            trajectories=np.unique(part.rollout_T).size,
            kl_k1=kl.k1,
            kl_k2=kl.k2,
            kl_k3=kl.k3,
            clip_raw=clip_fractions(part, low, high).raw,
            ratio_p1=ratios.p1 if tails else None,
            ratio_p5=ratios.p5,
            ratio_p95=ratios.p95,
            ratio_p99=ratios.p99 if tails else None,
        )
    return found


def active_clip(batch: Batch, low: float, high: float) -> BoolArray:
    """Where the clip takes a token's gradient away, shape (T,); see `losses.clip_active`.

    Raises:
        StatisticsError: the bounds do not hold 1 between them.
    """
    if not 0.0 <= low <= 1.0 <= high:
        raise StatisticsError(
            f"clip bounds {low} and {high}; they bound the ratio itself, low <= 1 <= high, such as "
            "0.8 and 1.2"
        )
    return clip_active(batch.ratio_T, batch.advantages_T, low, high)


def entropy_estimates(batch: Batch) -> Entropies:
    """Entropy of the behaviour policy and cross-entropy of the learner, per action token."""
    return Entropies(
        behaviour=float(-batch.behaviour_T.mean()), cross=float(-batch.learner_T.mean())
    )


def is_zero_variance(rewards_G: ArrayLike) -> bool:
    """Whether all rewards of a group are equal; a group of one is.

    Raises:
        RunError: a reward is NaN or infinite.
    """
    rewards = finite(rewards_G, "reward", ndim=1)
    return bool((rewards == rewards[0]).all())


def zero_variance_share(rewards_P_G: Sequence[ArrayLike]) -> float:
    """Share of groups whose rewards are all equal, before any filtering.

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: there is no group.
    """
    if not rewards_P_G:
        raise StatisticsError("0 groups; a share needs at least 1; give the step's groups")
    return sum(map(is_zero_variance, rewards_P_G)) / len(rewards_P_G)
