"""Intervals for the mean of bounded values, and for one binomial proportion.

All take ``alpha`` and ``sides`` (see ``checked.error_per_limit``) and are not clipped to the range:
a limit outside it is a fact about the method. Vectors of a million items take milliseconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import StatisticsError
from harness.statistics.checked import error_per_limit, finite_vector, positive, positive_int
from harness.statistics.special import beta_quantile, normal_quantile


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its limits, in the units of the scores, from ``n`` units."""

    estimate: float
    lower: float
    upper: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the distance between the limits; they need not be symmetric about the estimate."""
        return (self.upper - self.lower) / 2.0


def hoeffding_half_width(n: int, range: float, alpha: float, sides: int = 2) -> float:
    """R sqrt(ln(sides/alpha) / (2n)): known before any data.

    Hoeffding 1963, Theorem 2, for the mean of n independent values of range R.
    """
    log_term = -math.log(error_per_limit(alpha, sides))
    return positive(range, "range") * math.sqrt(log_term / (2.0 * positive_int(n, "n")))


def hoeffding(z_N: ArrayLike, range: float, alpha: float, sides: int = 2) -> Interval:
    """Hoeffding's interval for the mean of z_N, each of which has range ``range``."""
    z = finite_vector(z_N, "z")
    _fits(z.max() - z.min(), range)
    half = hoeffding_half_width(z.size, range, alpha, sides)
    mean = float(z.mean())
    return Interval(mean, mean - half, mean + half, z.size)


def hoeffding_p(excess: float, n: int, range: float, sides: int = 2) -> float:
    """Smallest alpha at which a mean that exceeds the margin by ``excess`` clears it."""
    if excess <= 0.0:
        return 1.0
    return min(1.0, sides * math.exp(-2.0 * n * (excess / range) ** 2))


def hoeffding_independent_cells(
    weights: Sequence[float], ranges: Sequence[float], n_per_cell: Sequence[int], alpha: float
) -> float:
    """Two-sided half-width sqrt(ln(2/alpha)/2 sum_a (w_a R_a)^2 / n_a) for DISJOINT items.

    Cells that share items are paired: use ``contrasts`` and ``hoeffding`` for those, this formula
    would claim an interval that is too narrow.
    """
    if not len(weights) == len(ranges) == len(n_per_cell) > 0:
        raise StatisticsError("weights, ranges and n_per_cell must be equally long and not empty")
    variance_proxy = sum(
        (w * positive(r, "range")) ** 2 / positive_int(n, "n of a cell")
        for w, r, n in zip(weights, ranges, n_per_cell, strict=True)
    )
    return math.sqrt(-math.log(error_per_limit(alpha, 2)) / 2.0 * variance_proxy)


def serfling_half_width(N: int, n: int, range: float, alpha: float, sides: int = 2) -> float:
    """R sqrt((1 - (n-1)/N) ln(sides/alpha) / (2n)): n of N listed items, drawn without replacement.

    Serfling 1974. What it covers is the mean over those N items and nothing beyond them.
    """
    if positive_int(n, "n") > positive_int(N, "N"):
        raise StatisticsError(f"n is {n}, more than the N = {N} items it is drawn from")
    return math.sqrt(1.0 - (n - 1) / N) * hoeffding_half_width(n, range, alpha, sides)


def empirical_bernstein(
    z_N: ArrayLike, range: float, alpha: float, sides: int = 2, log_events: int | None = None
) -> Interval:
    """Mean +- sqrt(2 V L / n) + 7 R L / (3 (n-1)) with V the unbiased variance.

    Maurer & Pontil 2009, Theorem 4. L = ln(log_events / alpha): 4 two-sided events as a plain union
    (the default), or 3 when the variance event is shared by both sides; one-sided always 2.
    """
    z = finite_vector(z_N, "z", at_least=2)
    _fits(z.max() - z.min(), range)
    log_term = math.log(_log_events(alpha, sides, log_events) / alpha)
    n, variance = z.size, float(z.var(ddof=1))
    half = math.sqrt(2.0 * variance * log_term / n) + 7.0 * range * log_term / (3.0 * (n - 1))
    mean = float(z.mean())
    return Interval(mean, mean - half, mean + half, n)


def empirical_bernstein_p(
    z_N: ArrayLike, margin: float, range: float, sides: int = 2, log_events: int | None = None
) -> float:
    """Smallest alpha at which the lower limit of ``empirical_bernstein`` clears the margin."""
    z = finite_vector(z_N, "z", at_least=2)
    excess = float(z.mean()) - margin
    if excess <= 0.0:
        return 1.0
    # the half-width is a quadratic in sqrt(L): a L + b sqrt(L) = excess
    a = 7.0 * range / (3.0 * (z.size - 1))
    b = math.sqrt(2.0 * float(z.var(ddof=1)) / z.size)
    sqrt_log = 2.0 * excess / (b + math.sqrt(b * b + 4.0 * a * excess))
    return min(1.0, _log_events(0.5, sides, log_events) * math.exp(-(sqrt_log**2)))


def wilson(successes: int, n: int, alpha: float, sides: int = 2) -> Interval:
    """Wilson's score interval for one proportion (asymptotic)."""
    _check_successes(successes, n)
    z = -normal_quantile(error_per_limit(alpha, sides))
    p, shrink = successes / n, 1.0 + z * z / n
    center = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4.0 * n * n))
    return Interval(p, center - half, center + half, n)


def clopper_pearson(successes: int, n: int, alpha: float, sides: int = 2) -> Interval:
    """Clopper-Pearson interval for one proportion (exact, conservative)."""
    _check_successes(successes, n)
    tail = error_per_limit(alpha, sides)
    k = successes
    lower = 0.0 if k == 0 else beta_quantile(tail, k, n - k + 1)
    upper = 1.0 if k == n else 1.0 - beta_quantile(tail, n - k, k + 1)
    return Interval(k / n, lower, upper, n)


def _log_events(alpha: float, sides: int, log_events: int | None) -> int:
    error_per_limit(alpha, sides)
    allowed = (2,) if sides == 1 else (4, 3)
    if log_events is None:
        return allowed[0]
    if log_events not in allowed:
        raise StatisticsError(f"log_events is {log_events}; with sides={sides} it may be {allowed}")
    return log_events


def _check_successes(successes: int, n: int) -> None:
    if not 0 <= successes <= positive_int(n, "n"):
        raise StatisticsError(f"{successes} successes of {n}: they must lie between 0 and n")


def _fits(spread: np.float64, range: float) -> None:
    # a weighted sum may exceed its exact range by the rounding of its terms
    if spread > positive(range, "range") * (1.0 + 1e-12):
        raise StatisticsError(f"values spread over {spread}, more than their range {range}")
