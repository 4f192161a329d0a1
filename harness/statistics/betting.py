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

Horizon = Literal["fixed_n", "anytime"]
TRUNCATION = 0.5  # largest share of the wealth that one bet may lose
CONVERGED = 1e-9  # a Newton step this small leaves an error far below it
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
    # "the mean is below m" wins on x what "it is above 1 - m" wins on 1 - x
    lower = _believable_from(x, bets, rich)
    upper = 1.0 - _believable_from(1.0 - x, bets, rich)
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
    bets = np.minimum(_bets(x, tail, "fixed_n"), TRUNCATION)
    psi = -np.log1p(-bets) - bets
    lower = _empirical_bernstein_lower(x, bets, psi, tail)
    upper = 1.0 - _empirical_bernstein_lower(1.0 - x, bets, psi, tail)
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


def _empirical_bernstein_lower(
    x_N: NDArray[np.float64],
    bets_N: NDArray[np.float64],
    psi_N: NDArray[np.float64],
    tail: float,
) -> float:
    """sum(l x)/sum(l) - (ln(1/tail) + sum v psi(l))/sum(l), psi(l) = -ln(1-l) - l."""
    past_means = np.zeros_like(x_N)  # nothing seen: 0, the end from which this limit comes
    past_means[1:] = np.cumsum(x_N)[:-1] / np.arange(1, x_N.size)
    deviations = (x_N - past_means) ** 2
    penalty = float(deviations @ psi_N) - math.log(tail)
    return (float(bets_N @ x_N) - penalty) / float(bets_N.sum())


def _believable_from(x_N: NDArray[np.float64], bets_N: NDArray[np.float64], rich: float) -> float:
    """Smallest m in [0, 1] at which the gambler on "above m" never gets rich.

    Log wealth falls in m, so Newton steps kept inside the bracket find the crossing in a few looks
    at the data; each look costs a pass over all items.
    """
    low, high, step = 0.0, 1.0, 1.0
    # from the side where the gambler is rich by much: there log wealth is close to a line
    m = max(0.01, float(x_N.mean()) - math.sqrt(2.0 * rich / x_N.size))
    for _ in range(200):
        excess, slope = _excess_and_slope(x_N, bets_N, m, rich)
        low, high = (m, high) if excess > 0.0 else (low, m)
        proposed = m - excess / slope if slope < 0.0 else low
        if abs(proposed - m) <= CONVERGED:
            return proposed
        if proposed <= low == 0.0 and _best_log_wealth(x_N, bets_N, 0.0) <= rich:
            return 0.0
        # half the bracket instead of a step that leaves it or does not halve the last step
        if not low < proposed < high or abs(proposed - m) > step / 2.0:
            proposed = (low + high) / 2.0
        m, step = proposed, abs(proposed - m)
    return m


def _excess_and_slope(
    x_N: NDArray[np.float64], bets_N: NDArray[np.float64], m: float, rich: float
) -> tuple[float, float]:
    """Best log wealth less ``rich``, and its derivative in m."""
    factors, stakes = _factors(x_N, bets_N, m)
    path = np.cumsum(np.log(factors))
    best = int(path.argmax())
    if path[best] <= 0.0:
        return -rich, 0.0
    # a capped stake is c/m, and its factor 1 - c + c x/m
    capped = bets_N[: best + 1] > stakes[: best + 1]
    stakes[: best + 1][capped] *= x_N[: best + 1][capped] / m
    return float(path[best]) - rich, -float((stakes[: best + 1] / factors[: best + 1]).sum())


def _best_log_wealth(x_N: NDArray[np.float64], bets_N: NDArray[np.float64], m: float) -> float:
    """Largest log wealth over time of the gambler on "the mean is above m", 0 at the start."""
    return max(0.0, float(np.cumsum(np.log(_factors(x_N, bets_N, m)[0])).max()))


def _factors(
    x_N: NDArray[np.float64], bets_N: NDArray[np.float64], m: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each bet multiplies the wealth by, and the stakes after the cap."""
    stakes = bets_N.copy() if m <= 0.0 else np.minimum(bets_N, TRUNCATION / m)
    factors = x_N - m
    factors *= stakes
    factors += 1.0
    return factors, stakes
