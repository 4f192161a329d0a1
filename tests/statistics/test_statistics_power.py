"""The power block: what a Hoeffding rule can show, before any data."""

import numpy as np
import pytest

from harness.errors import StatisticsError
from harness.statistics import (
    hoeffding_half_width,
    power_block,
    power_hoeffding_rule,
    required_n_hoeffding,
    smallest_passing_gap,
)
from harness.statistics.hoeffding_rule import n_for_power_hoeffding, n_for_power_normal


def test_registered_rule_of_gsm8k() -> None:
    """At n=1319 and a margin of -5 points: 7.479 points, net 33 up, -165 down, 0.2/2.3/5.1%."""
    block = power_block(1319, 2, -0.05, 0.05, 2)
    assert round(100 * block.half_width, 3) == 7.479
    assert (block.smallest_passing_net, block.refuting_net) == (33, -165)
    assert [round(100 * row.p_at_tie, 1) for row in block.rows] == [0.2, 2.3, 5.1]
    assert block.n_for_tie == 2952
    assert [row.n_for_80_at_tie for row in block.rows] == [3558, 3826, 4038]
    assert [row.n_for_80_at_tie_tango for row in block.rows] == [314, 628, 942]


def test_block_as_text() -> None:
    """The printed block carries the figures that a reader checks before paying for the run."""
    text = "\n".join(power_block(1319, 2, -0.05, 0.05, 2).lines())
    for figure in (
        "half-width 7.479 points",
        "+2.50 points (net +33)",
        "-12.51 points (net -165)",
        "P(VALIDATED) = 0.2/2.3/5.1% at discordance 10/20/30%",
        "tie to pass: 2952",
        "3558/3826/4038",
        "314/628/942",
    ):
        assert figure in text


@pytest.mark.parametrize(("d", "gap"), [(0.1, 0.032), (0.2, 0.035), (0.3, 0.037)])
def test_gap_for_80_percent_power_has_that_power(d: float, gap: float) -> None:
    """The reported gap is the true difference at which the exact power is 80%."""
    (row,) = power_block(1319, 2, -0.05, 0.05, 2, [d]).rows
    assert row.gap_for_80 == pytest.approx(gap, abs=5e-4)
    power = power_hoeffding_rule(1319, d, row.gap_for_80, -0.05, 0.05)
    assert power == pytest.approx(0.8, abs=1e-6)


def test_exact_power_against_simulation() -> None:
    """The exact sum agrees with 200,000 simulated experiments within four standard errors."""
    n, d, t, margin = 200, 0.3, 0.15, -0.05
    net = smallest_passing_gap(n, 2, margin, 0.05).min_net_sum_pass
    shares = [(d + t) / 2, (d - t) / 2, 1 - d]
    wins, losses, _ = np.random.default_rng(11).multinomial(n, shares, 200_000).T
    exact = power_hoeffding_rule(n, d, t, margin, 0.05)
    assert 0.2 < exact < 0.9
    simulated = float(np.mean(wins - losses >= net))
    assert simulated == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 200_000))


def test_difference_of_differences_needs_twice_the_width() -> None:
    """Four cells have range 4: half-width 14.96 points, and 11,805 items for 5 points."""
    block = power_block(1319, 4, -0.05, 0.05, 2)
    assert round(100 * block.half_width, 2) == 14.96
    assert block.n_for_tie == 11805
    assert all(row.p_at_tie < 1e-5 for row in block.rows)


def test_range_without_exact_power_says_so() -> None:
    """A contrast with weight -1.5 gets its gaps, no net and no probability, and says why."""
    block = power_block(1319, 2.5, 0.0, 0.05, 2)
    assert (block.smallest_passing_net, block.refuting_net, block.rows) == (None, None, ())
    assert block.smallest_passing_gap == pytest.approx(hoeffding_half_width(1319, 2.5, 0.05))
    assert "not 2.5" in block.lines()[-1]
    assert "can't pass at any n" in block.lines()[2]


def test_expected_effect_below_the_gap_is_a_problem() -> None:
    """A rule that can't pass at its author's own effect says how many items it would take."""
    (problem,) = power_block(1319, 2, -0.05, 0.05, 2, expected_effect=0.0).problems()
    assert "at least 2952 items" in problem
    assert power_block(2952, 2, -0.05, 0.05, 2, expected_effect=0.0).problems() == []
    assert power_block(1319, 2, -0.05, 0.05, 2, expected_effect=0.03).problems() == []
    assert power_block(1319, 2, -0.05, 0.05, 2).problems() == []
    (hopeless,) = power_block(1319, 2, -0.05, 0.05, 2, expected_effect=-0.06).problems()
    assert "use another margin" in hopeless


def test_power_at_the_expected_effect() -> None:
    """The block gives P(VALIDATED) at the expected effect where the discordance allows it."""
    low, high = power_block(1319, 2, -0.05, 0.05, 2, [0.02, 0.2], expected_effect=0.025).rows
    assert low.p_at_expected is None
    assert high.p_at_expected == pytest.approx(0.5114812732412506, abs=1e-8)


def test_unreachable_power_is_named() -> None:
    """Where even the largest difference does not reach 80%, the block says unreachable."""
    block = power_block(1319, 2, -0.05, 0.05, 2, [0.01])
    assert block.rows[0].gap_for_80 is None
    assert "unreachable" in "\n".join(block.lines())


@pytest.mark.parametrize("n", [1, 7, 100, 1319, 5000])
@pytest.mark.parametrize("margin", [-0.05, 0.0, 0.1])
def test_net_edges_are_edges(n: int, margin: float) -> None:
    """The smallest passing net passes and one less does not; the same below."""
    gap = smallest_passing_gap(n, 2, margin, 0.05)
    half = gap.half_width
    assert gap.min_net_sum_pass / n - half > margin >= (gap.min_net_sum_pass - 1) / n - half
    assert gap.max_net_sum_refuted / n + half < margin <= (gap.max_net_sum_refuted + 1) / n + half


@pytest.mark.parametrize("half_width", [0.3, 0.05, 0.0123])
def test_required_n_is_minimal(half_width: float) -> None:
    """One item fewer would give a wider interval than asked for."""
    n = required_n_hoeffding(2, 0.05, half_width)
    assert hoeffding_half_width(n, 2, 0.05) <= half_width < hoeffding_half_width(n - 1, 2, 0.05)


def test_no_n_gives_power_at_or_below_the_margin() -> None:
    """With the truth at the margin no number of items gives 80% power."""
    assert n_for_power_hoeffding(0.2, 0.0, 2, 0.05) is None
    assert n_for_power_normal(0.2, -0.01, 0.05) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, 0.2, 0.3, -0.05, 0.05), "can't come from discordance"),
        ((100, 0.0, 0.0, -0.05, 0.05), "can't come from discordance"),
        ((100, 0.2, 0.0, -0.05, 0.05, 2, 2.5), "exact power needs"),
        ((0, 0.2, 0.0, -0.05, 0.05), "n is 0"),
    ],
)
def test_power_refuses(arguments: tuple[float, ...], message: str) -> None:
    """Impossible designs raise one line."""
    with pytest.raises(StatisticsError, match=message):
        power_hoeffding_rule(*arguments)


def test_certain_discordance_is_a_plain_binomial() -> None:
    """With every item discordant the power is one binomial tail."""
    n, net = 50, smallest_passing_gap(50, 2, 0.0, 0.05).min_net_sum_pass
    wins = np.random.default_rng(5).binomial(n, 0.7, 200_000)
    assert power_hoeffding_rule(n, 1.0, 0.4, 0.0, 0.05) == pytest.approx(
        float(np.mean(2 * wins - n >= net)), abs=5e-3
    )
