"""Intervals as functions: their cost, what they refuse, and how p values and limits agree."""

import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import StatisticsError
from harness.statistics import (
    Interval,
    PairedCounts,
    betting_interval,
    bonett_price,
    clopper_pearson_pair,
    clustered_mean,
    clustered_t,
    contrast,
    empirical_bernstein,
    hoeffding,
    hoeffding_half_width,
    mcnemar_interval,
    newcombe,
    paired_counts,
    serfling_half_width,
    standard_error,
    t_interval,
    tango,
)
from harness.statistics.betting import betting_p
from harness.statistics.exact_limits import empirical_bernstein_clears, hoeffding_clears
from harness.statistics.intervals import empirical_bernstein_p, hoeffding_p
from harness.statistics.paired import clopper_pearson_pair_p, t_p, tango_p

TABLE = PairedCounts(700, 150, 117, 352)

SMALL = [1.0, 0.0, 0.0, 1.0, -1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize(
    ("limits", "p"),
    [
        (
            lambda a, s: hoeffding(SMALL, 2, a, s),
            lambda m, s: hoeffding_p(np.mean(SMALL) - m, len(SMALL), 2, s),
        ),
        (
            lambda a, s: empirical_bernstein(SMALL, 2, a, s),
            lambda m, s: empirical_bernstein_p(SMALL, m, 2, s),
        ),
        (
            lambda a, s: clopper_pearson_pair(TABLE, a, s),
            lambda m, s: clopper_pearson_pair_p(TABLE, m, s),
        ),
        (lambda a, s: tango(TABLE, a, s), lambda m, s: tango_p(TABLE, m, s)),
        (
            lambda a, s: t_interval(SMALL, a, s),
            lambda m, s: t_p(float(np.mean(SMALL)), standard_error(SMALL), len(SMALL) - 1, m, s),
        ),
    ],
    ids=["hoeffding", "bernstein", "clopper_pearson", "tango", "t"],
)
def test_p_is_the_smallest_alpha_that_clears(
    limits: Callable[[float, int], Interval], p: Callable[[float, int], float], sides: int
) -> None:
    """At an alpha just above p the lower limit clears the margin, just below p it does not."""
    reference = limits(0.05, sides)
    margin = reference.lower - 0.2 * (reference.estimate - reference.lower)
    value = p(margin, sides)
    assert 0.0 < value < 0.05
    assert limits(value * (1 + 1e-6), sides).lower > margin
    assert limits(value * (1 - 1e-6), sides).lower < margin
    assert p(reference.estimate + 0.01, sides) >= 0.5


@pytest.mark.parametrize("horizon", ["fixed_n", "anytime"])
def test_betting_p_agrees_with_its_limit(horizon: str) -> None:
    """Betting's p is below alpha on one side of its lower limit and above it on the other."""
    z_N = np.tile(SMALL, 6)
    lower = betting_interval(z_N, -1, 1, 0.05, horizon=horizon).lower
    assert betting_p(z_N, lower - 1e-6, -1, 1, 0.05, horizon=horizon) < 0.05
    assert betting_p(z_N, lower + 1e-6, -1, 1, 0.05, horizon=horizon) > 0.05


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=40))
def test_betting_limit_is_where_the_gambler_gets_rich(z_N: list[float]) -> None:
    """On any data the limits split the means into those that make a gambler rich and the rest."""
    interval = betting_interval(z_N, -1, 1, 0.05)
    for m in np.linspace(-0.999, 0.999, 23):
        rich = betting_p(z_N, float(m), -1, 1, 0.05) < 0.05
        if abs(m - interval.lower) > 1e-8:
            assert rich == (m < interval.lower)
    mirror = betting_interval([-z for z in z_N], -1, 1, 0.05)
    assert mirror.upper == pytest.approx(-interval.lower, abs=1e-8)


def test_betting_depends_on_the_order_alone_it_is_given() -> None:
    """Sorting the wins to the front fakes a lower limit that the honest order does not give."""
    z_N = np.array([1.0] * 140 + [-1.0] * 120 + [0.0] * 1059)
    honest = np.random.default_rng(3).permutation(z_N)
    faked = betting_interval(z_N, -1, 1, 0.05).lower
    assert faked > 0.01 > 0.0 > betting_interval(honest, -1, 1, 0.05).lower


def test_one_sided_grants_all_of_alpha_to_each_limit() -> None:
    """A one-sided 5% limit is the two-sided limit at 10%, for every method with sides."""
    for interval in (
        lambda a, s: hoeffding(SMALL, 2, a, s),
        lambda a, s: clopper_pearson_pair(TABLE, a, s),
        lambda a, s: tango(TABLE, a, s),
        lambda a, s: newcombe(TABLE, a, s),
        lambda a, s: bonett_price(TABLE, a, s),
        lambda a, s: mcnemar_interval(TABLE, a, s),
        lambda a, s: t_interval(SMALL, a, s),
        lambda a, s: betting_interval(SMALL, -1, 1, a, s),
    ):
        one, two = interval(0.05, 1), interval(0.1, 2)
        # the Bonferroni pair and the rest agree because only alpha / sides enters
        assert (one.lower, one.upper) == pytest.approx((two.lower, two.upper), abs=1e-9)


def test_exact_comparison_agrees_with_doubles_away_from_a_tie() -> None:
    """In 60 digits the same nets clear the margin as in doubles: 33 and not 32 of 1319."""
    for net, clears in ((33, True), (32, False)):
        excess = Fraction(net, 1319) + Fraction(1, 20)
        assert hoeffding_clears(excess, 1319, Fraction(2), Fraction(1, 20), 2) is clears
    z = np.array(SMALL)
    interval = empirical_bernstein(z, 2, 0.05)
    mean, variance = Fraction(1, 2), Fraction(float(z.var(ddof=1))).limit_denominator(10_000)
    for offset, clears in ((-1e-9, True), (1e-9, False)):
        excess = mean - Fraction(interval.lower + offset)
        assert empirical_bernstein_clears(excess, variance, 12, Fraction(2), Fraction(80)) is clears


def test_exact_comparison_sees_what_doubles_can_not() -> None:
    """Two margins that are one part in 1e20 apart fall on the two sides of the same limit."""
    # the half-width itself to 40 digits, from the known value of ln(40)
    squared = Fraction("3.6888794541139363028807108498187") * 4 / (2 * 1319)
    half = Fraction(math.isqrt(squared.numerator * 10**60 // squared.denominator), 10**30)
    nudge = Fraction(1, 10**20)
    assert hoeffding_clears(half + nudge, 1319, Fraction(2), Fraction(1, 20), 2)
    assert not hoeffding_clears(half - nudge, 1319, Fraction(2), Fraction(1, 20), 2)
    assert float(half + nudge) == float(half - nudge)


def test_clustered_t_counts_clusters_not_items() -> None:
    """Ten copies of every item leave the clustered interval as it was; plain t shrinks."""
    items = np.array([1.0, 0.0, 1.0, 0.0, -1.0, 1.0])
    copies, labels = np.repeat(items, 10), np.repeat(np.arange(6), 10)
    single, many = t_interval(items, 0.05), clustered_t(copies, labels, 0.05)
    assert (many.lower, many.upper) == pytest.approx((single.lower, single.upper))
    assert many.n == 6
    assert t_interval(copies, 0.05).half_width < 0.4 * many.half_width


def test_clusters_may_carry_any_names() -> None:
    """The labels' type and order do not enter the clustered standard error."""
    z_N = [1.0, 0.0, 0.0, 1.0, -1.0]
    numbered = clustered_mean(z_N, [0, 0, 1, 1, 2])
    assert clustered_mean(z_N, ["b", "b", "a", "a", "z"]) == numbered
    assert clustered_mean(z_N, [-5, -5, 10**9, 10**9, 0]) == numbered


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hoeffding([0.0, math.nan], 2, 0.05), "must be finite"),
        (lambda: hoeffding([], 2, 0.05), "at least 1"),
        (lambda: hoeffding([[0.0]], 2, 0.05), "one-dimensional"),
        (lambda: hoeffding(["x"], 2, 0.05), "must be numbers"),
        (lambda: hoeffding([0.0, 2.0], 1, 0.05), "more than their range"),
        (lambda: hoeffding_half_width(10, 2, 0.0), "alpha is 0.0"),
        (lambda: hoeffding_half_width(10, 2, 0.05, 3), "sides is 3"),
        (lambda: hoeffding_half_width(0, 2, 0.05), "n is 0"),
        (lambda: hoeffding_half_width(10, -2, 0.05), "range is -2"),
        (lambda: serfling_half_width(10, 11, 2, 0.05), "more than the N"),
        (lambda: empirical_bernstein([1.0], 2, 0.05), "at least 2"),
        (lambda: empirical_bernstein(SMALL, 2, 0.05, log_events=2), "log_events is 2"),
        (lambda: empirical_bernstein(SMALL, 2, 0.05, 1, log_events=3), "log_events is 3"),
        (lambda: paired_counts([1, 0.5], [1, 0]), "0 or 1"),
        (lambda: paired_counts([1, 0], [1]), "2 treatment and 1 baseline"),
        (lambda: PairedCounts(0, 0, 0, 0), "nor all zero"),
        (lambda: PairedCounts(0, -1, 2, 3), "must not be negative"),
        (lambda: t_interval([0.1, 0.1, 0.1], 0.05), "values that differ"),
        (lambda: clustered_mean([1.0, 0.0], [3, 3]), "at least 2 clusters"),
        (lambda: clustered_mean([1.0, 0.0], [3]), "cluster labels of shape"),
        (lambda: betting_interval([0.0, 1.5], -1, 1, 0.05), "leave"),
        (lambda: betting_interval([0.0], 1, 1, 0.05), "lo must be below hi"),
        (lambda: contrast({"a": 0}, (0, 1)), "non-zero weight"),
        (lambda: contrast({"a": 1}, {"b": (0, 1)}), "no bounds"),
        (lambda: contrast({"a": 1}, (1, 1)), r"\[1, 1\]; lo must be"),
        (lambda: contrast({"a": 1}, (0, 1)).values({"a": [1.2]}), "outside"),
        (lambda: contrast({"a": 1}, (0, 1)).values({}), "no scores"),
        (lambda: contrast({"a": 1, "b": 1}, (0, 1)).values({"a": [1], "b": [1, 0]}), "another"),
    ],
)
def test_refused_with_one_line(call: Callable[[], object], message: str) -> None:
    """Numbers that a formula does not accept raise one line that names what was wrong."""
    with pytest.raises(StatisticsError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("room", "allowed"), [("statistics", []), ("decisions", ["pydantic"])])
def test_imports_are_light(room: str, allowed: list[str]) -> None:
    """Neither room pulls in torch, tinker, transformers, scipy.stats or pytest.

    Outcomes cross to other processes as they are, which takes pydantic.
    """
    program = (
        f"import sys, harness.{room};"
        "heavy = {'torch', 'tinker', 'transformers', 'scipy.stats', 'pytest', 'pydantic'};"
        f"print(sorted(heavy & set(sys.modules) - set({allowed})))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout.strip() == "[]", shown.stderr


def test_overwhelming_evidence_still_has_a_p() -> None:
    """Where the exact p leaves the doubles it is reported as 1e-100, never as NaN."""
    assert clopper_pearson_pair_p(PairedCounts(0, 1319, 0, 0), -0.05) == pytest.approx(1e-100)
    assert clopper_pearson_pair_p(PairedCounts(51, 0, 0, 9), -0.1) > 1e-10
    with pytest.raises(StatisticsError, match="use a larger p"):
        clopper_pearson_pair(PairedCounts(0, 2, 5, 0), 1e-250)
