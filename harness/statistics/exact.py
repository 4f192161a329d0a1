"""Exact tests on counts, and Holm's step-down over several of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.errors import StatisticsError
from harness.statistics.checked import error_per_limit, finite_vector
from harness.statistics.intervals import Interval, clopper_pearson
from harness.statistics.paired import PairedCounts
from harness.statistics.special import binomial_cdf_half, binomial_pmf_half


@dataclass(frozen=True, slots=True)
class McNemar:
    """P values of the exact McNemar test: of margin 0 and of nothing else."""

    p_two_sided: float
    p_one_sided_treatment_better: float
    p_mid_two_sided: float


@dataclass(frozen=True, slots=True)
class Holm:
    """Adjusted p values in the order given, and which of them lie below alpha."""

    adjusted: tuple[float, ...]
    reject: tuple[bool, ...]


def mcnemar_exact(treatment_only: int, baseline_only: int) -> McNemar:
    """Exact McNemar test on the discordant counts: min(1, 2 P(Bin(b+c, 1/2) <= min(b, c))).

    Without a discordant pair every p is 1. Raises StatisticsError for a negative count.
    """
    b, c = treatment_only, baseline_only
    if min(b, c) < 0:
        raise StatisticsError(f"discordant counts are {b} and {c}; they must not be negative")
    if b + c == 0:
        return McNemar(1.0, 1.0, 1.0)
    tail = binomial_cdf_half(min(b, c), b + c)
    at_min = binomial_pmf_half(min(b, c), b + c)
    mid = 1.0 - at_min / 2.0 if b == c else 2.0 * tail - at_min
    return McNemar(min(1.0, 2.0 * tail), binomial_cdf_half(c, b + c), mid)


def mcnemar_tail(treatment_only: int, baseline_only: int) -> Fraction:
    """P(Bin(b+c, 1/2) <= c) as an exact fraction: the one-sided p of "treatment is better"."""
    m = treatment_only + baseline_only
    return Fraction(sum(math.comb(m, k) for k in range(baseline_only + 1)), 2**m)


def mcnemar_interval(counts: PairedCounts, alpha: float, sides: int = 2) -> Interval:
    """(2 theta - 1)(b + c)/n over the Clopper-Pearson interval of theta = b/(b+c).

    Conditional on the number of discordant pairs, and in agreement with the exact test: the lower
    limit is above 0 exactly when treatment wins more often and p < alpha. Without a discordant pair
    it is [0, 0].
    """
    discordant = counts.treatment_only + counts.baseline_only
    if discordant == 0:
        error_per_limit(alpha, sides)
        return Interval(0.0, 0.0, 0.0, counts.n)
    theta = clopper_pearson(counts.treatment_only, discordant, alpha, sides)
    lower, upper = (
        (2.0 * limit - 1.0) * discordant / counts.n for limit in (theta.lower, theta.upper)
    )
    return Interval(counts.net / counts.n, lower, upper, counts.n)


def holm(pvalues: Sequence[float], alpha: float) -> Holm:
    """Holm 1979: adjusted p_(j) = max_{i <= j} min(1, (m - i + 1) p_(i)); rejected if < alpha.

    Raises StatisticsError for an empty list or a p outside [0, 1].
    """
    error_per_limit(alpha, 1)
    p = finite_vector(pvalues, "pvalues")
    if p.min() < 0.0 or p.max() > 1.0:
        raise StatisticsError(f"p values must lie in [0, 1], got {p.min()} to {p.max()}")
    adjusted = [0.0] * p.size
    running = 0.0
    for rank, index in enumerate(p.argsort(kind="stable")):
        running = max(running, min(1.0, (p.size - rank) * float(p[index])))
        adjusted[index] = running
    return Holm(tuple(adjusted), tuple(value < alpha for value in adjusted))
