"""Two looks: what calls for the second, what both say together, and how often that is wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.cards.card import SecondLook
from harness.decisions import Criterion, Verdict, decide
from harness.decisions.looks import agreed, wanted
from harness.decisions.tables import p_validated, table_verdict, two_look_rates

Registered = Callable[..., Criterion]
Table = Callable[[int, int, int, int], tuple[Any, list[str]]]
LOOK = SecondLook(criterion="primary", low=-0.03, high=0.015)
N = 200


@pytest.fixture(name="outcome")
def _outcome(registered: Registered, table: Table) -> Callable[..., Any]:
    """The point rule at -1.5 points on a table of 200 items with this net."""

    def decided(net: int, **changes: Any) -> Any:
        scores, ids = table(50, 20 + max(net, 0), 20 + max(-net, 0), 110 - abs(net))
        return decide(registered(method="point_estimate", margin=-0.015, **changes), scores, ids)

    return decided


@pytest.mark.parametrize(
    ("net", "called"), [(4, False), (3, True), (-2, True), (-6, True), (-7, False)]
)
def test_gap_within_the_range_calls_for_a_second_look(outcome, net, called):
    """A first gap in [-3, +1.5] points does, both ends included; a clearer one does not."""
    assert wanted(LOOK, outcome(net)) is called


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (0, 1, Verdict.VALIDATED),
        (0, -8, Verdict.INCONCLUSIVE),
        (-5, -4, Verdict.REFUTED),
        (-5, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_two_looks_stand_only_together(outcome, first, second, together):
    """The common verdict, or INCONCLUSIVE; the estimate is the mean of both."""
    both = agreed(outcome(first), outcome(second))

    assert both.verdict is together
    assert both.estimate == pytest.approx((first + second) / 2 / N)
    assert both.sentence.startswith(str(together))


def test_missing_scores_make_both_looks_invalid(registered, outcome):
    """A second look without scores is INVALID, not a single look."""
    broken = decide(registered(method="point_estimate", margin=-0.015), {}, ["a"])

    assert agreed(outcome(0), broken).invalid
    assert not wanted(LOOK, broken)


def test_estimate_at_the_margin_is_at_least_it(registered, table):
    """'At least' takes the tie: 3 of 200 items behind is exactly -1.5 points."""
    scores, ids = table(100, 10, 13, 77)
    criterion = registered(method="point_estimate", margin=-0.015)

    assert decide(criterion, scores, ids).validated
    scores, ids = table(100, 10, 14, 76)
    assert decide(criterion, scores, ids).refuted


def test_a_point_estimate_is_thresholds_with_one_margin(registered, outcome):
    """What does not validate is refuted, as if registered so; limits are shown beside it."""
    weights = {"treatment": 1, "baseline": -1}
    same = registered(method="point_thresholds", margin=-0.015, refuted=(weights, -0.015))
    for net in (4, -3, -4, -60):
        point, wins = outcome(net), 20 + max(net, 0)
        assert table_verdict(same, N, wins, wins - net) is point.verdict
        assert point.verdict is not Verdict.INCONCLUSIVE
        assert point.p_validated is None
        assert point.lower < point.estimate < point.upper
        assert "are shown and not used" in point.sentence


def test_a_win_is_said_and_changes_nothing(outcome):
    """Above the registered bar the sentence says win, below it says what a win takes."""
    assert "this is a win" in outcome(5, win=0.02).sentence
    assert "this is no win" in outcome(4, win=0.02).sentence
    assert "win" not in outcome(-4, win=0.02).sentence


def test_simulated_rates_agree_with_whole_decisions(registered, table):
    """10,000 experiments at the margin through decide and agreed give the printed error rate."""
    n, d, margin, experiments = N, 0.2, -0.015, 10_000
    criterion = registered(method="point_estimate", margin=margin)
    rates = two_look_rates(criterion, LOOK, n, d, margin, 0.0, experiments, seed=1)

    generator = np.random.default_rng(2)
    shares = [(d + margin) / 2, (d - margin) / 2, 1 - d]
    known: dict[tuple[int, int], Any] = {}

    def decided(b: int, c: int) -> Any:
        if (b, c) not in known:
            scores, ids = table(0, b, c, n - b - c)
            known[b, c] = decide(criterion, scores, ids)
        return known[b, c]

    said = dict.fromkeys(Verdict, 0)
    for (b1, c1, _), (b2, c2, _) in generator.multinomial(n, shares, (experiments, 2)).tolist():
        outcome = decided(b1, c1)
        if wanted(LOOK, outcome):
            outcome = agreed(outcome, decided(b2, c2))
        said[outcome.verdict] += 1
    # four standard errors of the difference of two shares of 10,000
    bound = 4 * np.sqrt(2 * 0.25 / experiments)
    assert rates.validated == pytest.approx(said[Verdict.VALIDATED] / experiments, abs=bound)
    assert rates.refuted == pytest.approx(said[Verdict.REFUTED] / experiments, abs=bound)
    alone = two_look_rates(criterion, None, n, d, margin, 0.0, experiments, seed=1)
    assert rates.validated < alone.validated - 0.1
    assert alone.second_look == 0.0 < rates.second_look


@pytest.mark.parametrize(
    ("method", "expected"),
    [("paired_cp_bonferroni", 0.84), ("paired_tango", 0.98), ("paired_empirical_bernstein", 0.44)],
)
def test_table_power_is_the_published_one(registered, method, expected):
    """At n=1319, margin -5 points, a tie and discordance 20%, as simulated independently."""
    power = p_validated(registered(method=method), 1319, 0.2, 0.0)

    assert power == pytest.approx(expected, abs=0.01)


def test_table_verdict_is_the_decision(registered, table):
    """Asking about a table and deciding on its scores say the same at every net."""
    criterion = registered(method="paired_tango", margin=-0.1)
    for wins in range(0, 31, 3):
        scores, ids = table(20, wins, 30 - wins, 30)
        assert (
            table_verdict(criterion, 80, wins, 30 - wins) is decide(criterion, scores, ids).verdict
        )
