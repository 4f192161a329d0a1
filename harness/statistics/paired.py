"""Two arms on the same items: intervals for a paired difference of proportions, and paired t.

The table is (both right, treatment only, baseline only, neither); in formulas b and c are the two
discordant counts, d = (b + c) / n the discordance, (b - c) / n the difference.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import StatisticsError
from harness.statistics.checked import error_per_limit, finite_vector
from harness.statistics.intervals import Interval, clopper_pearson, wilson
from harness.statistics.special import normal_cdf, normal_quantile, root, t_cdf, t_quantile


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """The 2x2 table of two arms that were scored 0 or 1 on the same items."""

    both: int
    treatment_only: int
    baseline_only: int
    neither: int

    def __post_init__(self) -> None:
        if min(self.both, self.treatment_only, self.baseline_only, self.neither) < 0 or self.n < 1:
            raise StatisticsError(f"{self}: counts must not be negative, nor all zero")

    @property
    def n(self) -> int:
        """Number of items."""
        return self.both + self.treatment_only + self.baseline_only + self.neither

    @property
    def net(self) -> int:
        """Items won minus items lost, b - c."""
        return self.treatment_only - self.baseline_only

    @property
    def discordance(self) -> float:
        """Share of the items on which the arms disagree, (b + c) / n."""
        return (self.treatment_only + self.baseline_only) / self.n

    def swapped(self) -> "PairedCounts":
        """The same table with the arms exchanged."""
        return PairedCounts(self.both, self.baseline_only, self.treatment_only, self.neither)


def paired_counts(treatment_N: ArrayLike, baseline_N: ArrayLike) -> PairedCounts:
    """Count the 2x2 table of two aligned 0/1 vectors.

    Raises StatisticsError for unequal lengths or any score other than 0 and 1.
    """
    treatment = finite_vector(treatment_N, "treatment scores")
    baseline = finite_vector(baseline_N, "baseline scores")
    if treatment.size != baseline.size:
        raise StatisticsError(f"{treatment.size} treatment and {baseline.size} baseline scores")
    # 0/1 scores only: then 2t + b numbers the four cells
    if not (((treatment == 0) | (treatment == 1)) & ((baseline == 0) | (baseline == 1))).all():
        raise StatisticsError("a 2x2 table needs scores that are 0 or 1")
    cells = np.bincount((2 * treatment + baseline).astype(np.int64), minlength=4)
    return PairedCounts(int(cells[3]), int(cells[2]), int(cells[1]), int(cells[0]))


def clopper_pearson_pair(counts: PairedCounts, alpha: float, sides: int = 2) -> Interval:
    """[L(b) - U(c), U(b) - L(c)] with both Clopper-Pearson intervals at alpha/2.

    Exact at every n by Bonferroni over the two binomials b and c, and free of any item order.
    """
    b = clopper_pearson(counts.treatment_only, counts.n, alpha / 2.0, sides)
    c = clopper_pearson(counts.baseline_only, counts.n, alpha / 2.0, sides)
    return Interval(counts.net / counts.n, b.lower - c.upper, b.upper - c.lower, counts.n)


def clopper_pearson_pair_p(counts: PairedCounts, margin: float, sides: int = 2) -> float:
    """Smallest alpha at which the lower limit of ``clopper_pearson_pair`` clears the margin.

    Below 1e-100 it is given as 1e-100: beta quantiles leave the doubles further down.
    """

    def clearance(log_alpha: float) -> float:
        return clopper_pearson_pair(counts, math.exp(log_alpha), sides).lower - margin

    largest = math.log1p(-1e-12)
    if clearance(largest) <= 0.0:
        return 1.0
    return math.exp(root(clearance, math.log(1e-100), largest))


def tango(counts: PairedCounts, alpha: float, sides: int = 2) -> Interval:
    """Invert Tango's score test (1998): asymptotic, close to its level from n = 50 on.

    The statistic falls from the upper end of [-1, 1] to the lower, so each limit is one root.
    """
    z = -normal_quantile(error_per_limit(alpha, sides))
    lower = root(lambda t: tango_statistic(counts, t) - z, -1.0, 1.0)
    upper = root(lambda t: tango_statistic(counts, t) + z, -1.0, 1.0)
    return Interval(counts.net / counts.n, lower, upper, counts.n)


def tango_statistic(counts: PairedCounts, difference: float) -> float:
    """(b - c - n t) / sqrt(n (2q + t(1-t))), q the likelihood's P(baseline only) given t.

    Tango 1998, with the constrained estimate in closed form; infinite where its variance is zero.
    """
    n, b, c, t = counts.n, counts.treatment_only, counts.baseline_only, difference
    linear = -b - c + (2 * n - b + c) * t
    constant = -c * t * (1.0 - t)
    q = (math.sqrt(max(linear * linear - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = n * (2.0 * q + t * (1.0 - t))
    excess = b - c - n * t
    if variance <= 0.0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


def tango_p(counts: PairedCounts, margin: float, sides: int = 2) -> float:
    """Smallest alpha at which Tango's lower limit clears the margin."""
    return min(1.0, sides * normal_cdf(-tango_statistic(counts, margin)))


def phi_corrected(counts: PairedCounts) -> float:
    """Correlation of the two arms with Newcombe's continuity correction, 0 at an empty margin."""
    e, f, g, h = counts.both, counts.treatment_only, counts.baseline_only, counts.neither
    margins = (e + f) * (g + h) * (e + g) * (f + h)
    if margins == 0:
        return 0.0
    covariance = float(e * h - f * g)
    if covariance > 0.0:
        covariance = max(covariance - counts.n / 2.0, 0.0)
    return covariance / math.sqrt(margins)


def newcombe(counts: PairedCounts, alpha: float, sides: int = 2) -> Interval:
    """Newcombe 1998, paired method 10: two Wilson intervals, squared and added (asymptotic)."""
    n, phi = counts.n, phi_corrected(counts)
    one = wilson(counts.both + counts.treatment_only, n, alpha, sides)
    two = wilson(counts.both + counts.baseline_only, n, alpha, sides)

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2.0 * phi * a * b + b * b, 0.0))

    estimate = counts.net / n
    down = distance(one.estimate - one.lower, two.upper - two.estimate)
    up = distance(one.upper - one.estimate, two.estimate - two.lower)
    return Interval(estimate, estimate - down, estimate + up, n)


def bonett_price(counts: PairedCounts, alpha: float, sides: int = 2) -> Interval:
    """Bonett & Price 2012: Wald after adding one to each discordant cell (asymptotic)."""
    z = -normal_quantile(error_per_limit(alpha, sides))
    b = (counts.treatment_only + 1) / (counts.n + 2)
    c = (counts.baseline_only + 1) / (counts.n + 2)
    half = z * math.sqrt((b + c - (b - c) ** 2) / (counts.n + 2))
    return Interval(counts.net / counts.n, b - c - half, b - c + half, counts.n)


def t_interval(z_N: ArrayLike, alpha: float, sides: int = 2) -> Interval:
    """Student's t interval for the mean of z_N, one value per independent unit.

    For paired arms pass the differences. Raises StatisticsError below 2 values, or when all are
    equal: without spread t has no width to offer.
    """
    z = finite_vector(z_N, "z", at_least=2)
    mean, se = float(z.mean()), standard_error(z)
    return t_limits(mean, se, z.size - 1, z.size, alpha, sides)


def standard_error(z_N: ArrayLike) -> float:
    """sd / sqrt(n) with the unbiased variance; StatisticsError below 2 values."""
    z = finite_vector(z_N, "z", at_least=2)
    if z.min() == z.max():
        return 0.0  # exactly: the rounding of the mean must not look like spread
    return math.sqrt(float(z.var(ddof=1)) / z.size)


def t_limits(mean: float, se: float, df: int, n: int, alpha: float, sides: int = 2) -> Interval:
    """Mean +- t_df se; StatisticsError when se is zero."""
    tail = error_per_limit(alpha, sides)
    if se <= 0.0:
        raise StatisticsError(f"all {n} values are equal ({mean}): t needs values that differ")
    half = -t_quantile(tail, df) * se
    return Interval(mean, mean - half, mean + half, n)


def t_p(mean: float, se: float, df: int, margin: float, sides: int = 2) -> float:
    """Smallest alpha at which the lower t limit clears the margin; ``se`` above 0."""
    return min(1.0, sides * t_cdf(-(mean - margin) / se, df))
