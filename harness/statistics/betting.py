"""Intervals for a bounded mean by betting (Waudby-Smith & Ramdas 2023). They depend on the order.

Values are mapped to [0, 1]. A gambler stakes on "the mean is above m" and another on "below m";
an m that makes one of them rich (wealth >= 1 / error per limit) is no longer believable. Bets may
look at the past only, so the order of the items must be fixed before they are scored.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import StatisticsError
from harness.statistics.checked import error_per_limit, finite, finite_vector
from harness.statistics.intervals import Interval
from harness.statistics.special import root

Horizon = Literal["fixed_n", "anytime"]
TRUNCATION = 0.5  # largest share of the wealth that one bet may lose
PRIOR_MEAN, PRIOR_VARIANCE, FAKE_OBSERVATIONS = 0.5, 0.25, 1


def betting_interval(
    z_N: ArrayLike,
    range_lo: float,
    range_hi: float,
    alpha: float,
    sides: int = 2,
    horizon: Horizon = "fixed_n",
) -> Interval:
    """Hedged-capital betting interval for the mean of z_N, in the order given.

    ``fixed_n`` tunes the bets to the sample size; ``anytime`` bets as 1/sqrt(t log(t+1)) and stays
    valid when the experiment may stop at any t. Every m that was ruled out at some t stays out.
    """
    x, tail = _unit_interval(z_N, range_lo, range_hi), error_per_limit(alpha, sides)
    bets = _bets(x, tail, horizon)
    rich = -math.log(tail)
    # log wealth falls in m for the gambler on "above" and, mirrored, for the one on "below"
    lower = root(lambda m: _best_log_wealth(x, bets, m) - rich, 0.0, 1.0)
    upper = 1.0 - root(lambda m: _best_log_wealth(1.0 - x, bets, m) - rich, 0.0, 1.0)
    scale = range_hi - range_lo
    mean = float(np.mean(finite_vector(z_N, "z")))
    return Interval(mean, range_lo + scale * lower, range_lo + scale * upper, x.size)


def betting_p(
    z_N: ArrayLike,
    margin: float,
    range_lo: float,
    range_hi: float,
    alpha: float,
    sides: int = 2,
    horizon: Horizon = "fixed_n",
) -> float:
    """sides / (largest wealth against "the mean is at most the margin"), at most 1.

    A valid p by Ville's inequality for the bets tuned at ``alpha``; below alpha exactly when the
    lower limit of ``betting_interval`` at that alpha clears the margin.
    """
    x, tail = _unit_interval(z_N, range_lo, range_hi), error_per_limit(alpha, sides)
    m = (finite(margin, "margin") - range_lo) / (range_hi - range_lo)
    if m >= 1.0:
        return 1.0
    return min(1.0, sides * math.exp(-_best_log_wealth(x, _bets(x, tail, horizon), max(m, 0.0))))


def predictable_empirical_bernstein(
    z_N: ArrayLike, range_lo: float, range_hi: float, alpha: float, sides: int = 2
) -> Interval:
    """Predictable plug-in empirical-Bernstein interval at a fixed n, in the order given.

    Waudby-Smith & Ramdas 2023, Theorem 2; the upper limit is the lower limit of the mirrored data.
    """
    x, tail = _unit_interval(z_N, range_lo, range_hi), error_per_limit(alpha, sides)
    lower = _empirical_bernstein_lower(x, tail)
    upper = 1.0 - _empirical_bernstein_lower(1.0 - x, tail)
    scale = range_hi - range_lo
    mean = float(np.mean(finite_vector(z_N, "z")))
    return Interval(mean, range_lo + scale * lower, range_lo + scale * upper, x.size)


def _unit_interval(z_N: ArrayLike, range_lo: float, range_hi: float) -> NDArray[np.float64]:
    z = finite_vector(z_N, "z")
    scale = finite(range_hi, "range_hi") - finite(range_lo, "range_lo")
    if scale <= 0.0:
        raise StatisticsError(f"range is [{range_lo}, {range_hi}]; lo must be below hi")
    x: NDArray[np.float64] = (z - range_lo) / scale
    # a weighted sum may leave its exact range by the rounding of its terms
    if x.min() < -1e-12 or x.max() > 1.0 + 1e-12:
        raise StatisticsError(f"values {z.min()} to {z.max()} leave [{range_lo}, {range_hi}]")
    return np.clip(x, 0.0, 1.0)


def _bets(x_N: NDArray[np.float64], tail: float, horizon: Horizon) -> NDArray[np.float64]:
    """sqrt(2 ln(1/tail) / (variance so far x n)), or x t log(1+t) when n is open."""
    t = np.arange(1, x_N.size + 1, dtype=np.float64)
    means = (FAKE_OBSERVATIONS * PRIOR_MEAN + np.cumsum(x_N)) / (t + FAKE_OBSERVATIONS)
    spread = FAKE_OBSERVATIONS * PRIOR_VARIANCE + np.cumsum((x_N - means) ** 2)
    variances = np.empty_like(x_N)
    variances[0] = PRIOR_VARIANCE
    variances[1:] = (spread / (t + FAKE_OBSERVATIONS))[:-1]
    pace = float(x_N.size) if horizon == "fixed_n" else t * np.log1p(t)
    bets: NDArray[np.float64] = np.sqrt(-2.0 * math.log(tail) / (pace * variances))
    return bets


def _empirical_bernstein_lower(x_N: NDArray[np.float64], tail: float) -> float:
    """sum(l x)/sum(l) - (ln(1/tail) + sum v psi(l))/sum(l), psi(l) = -ln(1-l) - l."""
    bets = np.minimum(_bets(x_N, tail, "fixed_n"), TRUNCATION)
    past_means = np.zeros_like(x_N)  # nothing seen: 0, the end from which this limit comes
    past_means[1:] = np.cumsum(x_N)[:-1] / np.arange(1, x_N.size)
    deviations = (x_N - past_means) ** 2
    penalty = float(deviations @ (-np.log1p(-bets) - bets)) - math.log(tail)
    return (float(bets @ x_N) - penalty) / float(bets.sum())


def _best_log_wealth(x_N: NDArray[np.float64], bets_N: NDArray[np.float64], m: float) -> float:
    """Largest log wealth over time of the gambler on "the mean is above m", 0 at the start."""
    stakes = bets_N if m <= 0.0 else np.minimum(bets_N, TRUNCATION / m)
    return max(0.0, float(np.cumsum(np.log1p(stakes * (x_N - m))).max()))
