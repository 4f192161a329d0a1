"""Which advantage mass the clip silences: |A|-weighted sums by success count, by rank and sign.

Sums are kept raw, so that rates within a bucket and shares of the whole can both be derived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import StatisticsError
from harness.methods.arrays import BoolArray, FloatArray
from harness.methods.staleness import Batch, active_clip

# bounds of the success count k in a group of eight, both inclusive; the registered card's
K_BUCKETS: Mapping[str, tuple[int, int]] = {"1": (1, 1), "2": (2, 2), "3-5": (3, 5), "6-7": (6, 7)}
OTHER = "other"


@dataclass(frozen=True)
class Mass:
    """Raw sums over the tokens of a bucket: `total` = sum |A|, `clipped` = sum |A| c.

    c is 1 where the clip is active. Over several buckets, rates are clipped/total within each, and
    shares are clipped/total of all. `tokens` can be a fraction where ties were spread over ranks.
    """

    tokens: float
    total: float
    clipped: float

    @property
    def rate(self) -> float:
        """clipped / total, NaN where the bucket has no mass."""
        return self.clipped / self.total if self.total > 0 else float("nan")


@dataclass(frozen=True)
class RankMass:
    """`Mass` by within-group reward rank (1 = best, the first entry) and sign of the advantage."""

    positive: tuple[Mass, ...]
    negative: tuple[Mass, ...]


def mass_by_successes(
    batch: Batch, low: float, high: float, buckets: Mapping[str, tuple[int, int]] = K_BUCKETS
) -> dict[str, Mass]:
    """|A|-weighted clip-active mass, by how many rollouts k of the group succeeded.

    Source: the registered card maxrl_lag4_clip_mass_gsm8k_08b.

    Args:
        batch: its rewards are 0 or 1.
        low: lower bound of the ratio.
        high: upper bound of the ratio.
        buckets: inclusive bounds of k by name; what no bucket holds is counted as "other".

    Returns:
        every bucket and "other": token counts and sums add up to those of the whole batch.

    Raises:
        StatisticsError: a reward is neither 0 nor 1, or the bounds make no sense.
    """
    successes = []
    for index, group in enumerate(batch.rewards):
        if not np.isin(group, (0.0, 1.0)).all():
            raise StatisticsError(
                f"group {index} has rewards {group.tolist()}; successes are counted on 0 and 1 only"
            )
        successes.append(np.full(len(group), group.sum()))
    k_T = np.concatenate(successes)[batch.rollout_T]
    weight_T, clipped_T = _mass(batch, low, high)
    left_T = np.ones(k_T.shape, dtype=np.bool_)
    masses = {}
    for name, (least, most) in buckets.items():
        inside_T = (k_T >= least) & (k_T <= most)
        left_T &= ~inside_T
        masses[name] = _sum(inside_T, weight_T, clipped_T)
    return {**masses, OTHER: _sum(left_T, weight_T, clipped_T)}


def mass_by_rank(batch: Batch, low: float, high: float) -> RankMass:
    """|A|-weighted clip-active mass, by within-group reward rank and sign of the advantage.

    A block of equal rewards spreads its mass evenly over the ranks that it occupies, so the table
    does not depend on their order and conserves mass. Tokens with A = 0 carry none.

    Source: the registered card tailrl_lag8_sec_search_4b.

    Returns:
        as many ranks as the largest group has rollouts.

    Raises:
        StatisticsError: the bounds make no sense.
    """
    weight_T, clipped_T = _mass(batch, low, high)
    spread_R_G = _rank_shares(batch.rewards)

    def table(chosen_T: BoolArray) -> tuple[Mass, ...]:
        per_rollout_R_3 = np.zeros((len(spread_R_G), 3))
        values_T_3 = np.stack([np.ones_like(weight_T), weight_T, clipped_T], axis=1)
        np.add.at(per_rollout_R_3, batch.rollout_T[chosen_T], values_T_3[chosen_T])
        by_rank_G_3 = spread_R_G.T @ per_rollout_R_3
        return tuple(Mass(*row) for row in by_rank_G_3.tolist())

    return RankMass(table(batch.advantages_T > 0), table(batch.advantages_T < 0))


def _mass(batch: Batch, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    """|A| of each token, and |A| where the clip is active (0 elsewhere)."""
    weight_T = np.abs(batch.advantages_T)
    return weight_T, np.where(active_clip(batch, low, high), weight_T, 0.0)


def _sum(inside_T: BoolArray, weight_T: FloatArray, clipped_T: FloatArray) -> Mass:
    return Mass(
        tokens=float(inside_T.sum()),
        total=float(weight_T[inside_T].sum()),
        clipped=float(clipped_T[inside_T].sum()),
    )


def _rank_shares(rewards: Sequence[FloatArray]) -> FloatArray:
    """Share of each rollout in each rank of its group, shape (rollouts, largest group)."""
    largest = max(map(len, rewards))
    rows = []
    for group in rewards:
        above = (group[None, :] > group[:, None]).sum(axis=1)
        tied = (group[None, :] == group[:, None]).sum(axis=1)
        ranks = np.arange(largest)
        occupied = (ranks >= above[:, None]) & (ranks < (above + tied)[:, None])
        rows.append(occupied / tied[:, None])
    return np.concatenate(rows)
