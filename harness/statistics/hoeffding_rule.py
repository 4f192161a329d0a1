"""A Hoeffding rule before any data: its edges, its exact power, the n that it would take.

VALIDATED when the lower limit is above the margin, REFUTED when the upper one is below. The
half-width depends on n alone, so the gaps that decide are known in advance. Probabilities are exact
for 0/1 scores and contrasts made of ``range / 2`` pairs of arms (two arms: range 2; a difference
of differences: range 4, its pairs then taken as independent of each other).
"""

import math
from dataclasses import dataclass

import numpy as np

from harness.errors import StatisticsError
from harness.statistics.checked import error_per_limit, finite, positive
from harness.statistics.exact_limits import hoeffding_clears
from harness.statistics.intervals import hoeffding_half_width
from harness.statistics.ratios import as_fraction
from harness.statistics.special import binomial_at_least, binomial_pmf, normal_quantile, root

POWER = 0.8


@dataclass(frozen=True, slots=True)
class PassingGap:
    """The observed means, and for whole-numbered z the net sums, at which the rule decides."""

    half_width: float
    pass_needs_mean_above: float
    refuted_needs_mean_below: float
    min_net_sum_pass: int
    max_net_sum_refuted: int


def required_n_hoeffding(range: float, alpha: float, half_width: float, sides: int = 2) -> int:
    """Smallest n whose half-width is at most ``half_width``: ceil(R^2 ln(sides/alpha)/(2 h^2))."""
    log_term = -math.log(error_per_limit(alpha, sides))
    ratio = positive(range, "range") / positive(half_width, "half_width")
    n = max(1, math.ceil(ratio**2 * log_term / 2.0))
    # the closed form can be off by one in doubles
    while hoeffding_half_width(n, range, alpha, sides) > half_width:
        n += 1
    while n > 1 and hoeffding_half_width(n - 1, range, alpha, sides) <= half_width:
        n -= 1
    return n


def smallest_passing_gap(
    n: int, range: float, margin: float, alpha: float, sides: int = 2
) -> PassingGap:
    """Where the rule decides. Net sums are sum_i z_i; for two 0/1 arms items won minus lost.

    They may exceed what the data can reach: such a rule can't come out that way.
    """
    half = hoeffding_half_width(n, range, alpha, sides)
    up = _smallest_net(n, range, finite(margin, "margin"), alpha, sides)
    down = -_smallest_net(n, range, -margin, alpha, sides)
    return PassingGap(half, margin + half, margin - half, up, down)


def power_hoeffding_rule(
    n: int,
    discordance: float,
    true_difference: float,
    margin: float,
    alpha: float,
    sides: int = 2,
    range: float = 2.0,
) -> float:
    """Exact P(VALIDATED): sum_k Bin(k; N, d) P(Bin(k, (d+t)/2d) >= (k + net)/2).

    ``range / 2`` pairs of arms, N = n range/2 comparisons, each discordant with probability d, and
    t = true_difference / (range/2) the difference within each pair.
    Raises StatisticsError for a range that is not even, or |t| > d.
    """
    pairs = range / 2.0
    if pairs != int(pairs) or pairs < 1:
        raise StatisticsError(f"range is {range}: exact power needs 2, 4, ... (pairs of 0/1 arms)")
    d, t = discordance, true_difference / pairs
    if not 0.0 < d <= 1.0 or abs(t) > d:
        raise StatisticsError(f"a difference of {t} per pair can't come from discordance {d}")
    net = smallest_passing_gap(n, range, margin, alpha, sides).min_net_sum_pass
    comparisons = int(n * pairs)
    if d == 1.0:
        k, pmf = np.array([comparisons]), np.ones(1)
    else:
        reach = 12.0 * math.sqrt(comparisons * d * (1.0 - d)) + 40.0  # beyond: below 1e-30
        center = comparisons * d
        k = np.arange(max(0, int(center - reach)), min(comparisons, int(center + reach)) + 1)
        pmf = binomial_pmf(k, comparisons, d)
    wins = (k + net + 1) // 2
    return float(pmf @ binomial_at_least(wins, k, (d + t) / (2.0 * d)))


def gap_for_power(
    n: int, discordance: float, margin: float, alpha: float, sides: int = 2, range: float = 2.0
) -> float | None:
    """True difference at which P(VALIDATED) is 80%; None when the largest does not reach it."""
    largest = discordance * range / 2.0

    def surplus(difference: float) -> float:
        return power_hoeffding_rule(n, discordance, difference, margin, alpha, sides, range) - POWER

    if surplus(largest) < 0.0:
        return None
    return root(surplus, -largest, largest, tolerance=1e-9)


def n_for_power_hoeffding(
    variance: float, distance: float, range: float, alpha: float, sides: int = 2
) -> int | None:
    """Items for 80% power when the truth lies ``distance`` above the margin.

    Normal approximation of the mean, exact half-width: ((R sqrt(ln(sides/alpha)/2) +
    z_.8 sd) / distance)^2. None for a distance of zero or less.
    """
    if distance <= 0.0:
        return None
    at_one = hoeffding_half_width(1, range, alpha, sides)
    return math.ceil(((at_one + normal_quantile(POWER) * math.sqrt(variance)) / distance) ** 2)


def n_for_power_normal(
    variance: float, distance: float, alpha: float, sides: int = 2
) -> int | None:
    """The same for an interval of width z sd/sqrt(n), such as Tango's or a clustered t."""
    if distance <= 0.0:
        return None
    z = normal_quantile(POWER) - normal_quantile(error_per_limit(alpha, sides))
    return math.ceil(z**2 * variance / distance**2)


def _smallest_net(n: int, range: float, margin: float, alpha: float, sides: int) -> int:
    """Smallest whole net sum whose lower limit is above the margin, decided in exact arithmetic."""

    def clears(net: int) -> bool:
        excess = as_fraction(net) / n - as_fraction(margin)
        return hoeffding_clears(excess, n, as_fraction(range), as_fraction(alpha), sides)

    net = math.floor(n * (margin + hoeffding_half_width(n, range, alpha, sides)))
    while clears(net):
        net -= 1
    while not clears(net):
        net += 1
    return net
