"""Two criteria that must agree, of which one refutes only near zero, behind premises."""

import math
from fractions import Fraction

import pytest
from families import NEXT, rule_of
from hypothesis import given
from hypothesis import strategies as st

from harness.decisions import Criterion, Verdict, decide, decision
from harness.decisions.reachable import can_come_out_both_ways
from harness.errors import CardError

CELLS = ("tailrl_lag0", "tailrl_lag8", "drgrpo_lag0", "drgrpo_lag8")
DROPS = dict(zip(CELLS, (1.0, -1.0, -1.0, 1.0), strict=True))
STATED = {
    "metric": "m",
    "bounds": (0, 1),
    "alpha": 0.05,
    "sides": 2,
    "method": "point_thresholds",
    "seeds": (0,),
}
PREMISE = Criterion(
    id="lag_bites",
    weights={"tailrl_lag8": 1, "tailrl_lag0": -3},
    margin=0.0,
    unit="seeds",
    premise=True,
    **STATED,
)
RATIO = Criterion(
    id="mass_ratio",
    weights={"tailrl_lag8": 1, "drgrpo_lag8": -1.5},
    margin=0.0,
    refuted=({"tailrl_lag8": 1, "drgrpo_lag8": -1.2}, 0.0),
    unit="seeds",
    **STATED,
)
DROP = Criterion(
    id="f4_drop_difference",
    weights=DROPS,
    margin=0.05,
    refuted=(DROPS, 0.05),
    refuted_from=-0.05,
    **STATED,
)
UNIT = st.decimals(0, 1, places=4).map(float)

RULE = rule_of("all_must_agree", ["mass_ratio", "f4_drop_difference"], {"lag_bites": NEXT}, False)


def on_one_seed(*values: float) -> dict[str, dict[str, float]]:
    """A number of each cell, in the order of CELLS."""
    return {cell: {"0": value} for cell, value in zip(CELLS, values, strict=True)}


def items(tailrl_drop: float, drgrpo_drop: float = 0.0) -> dict[str, dict[str, float]]:
    """F4 of one question in each cell, with these drops from lag 0 to lag 8."""
    means = (0.5, 0.5 - tailrl_drop, 0.5, 0.5 - drgrpo_drop)
    return {cell: {"q": value} for cell, value in zip(CELLS, means, strict=True)}


def verdict(t: float, b: float, f4: dict[str, dict[str, float]], kl: float = 1.0) -> Verdict:
    """The whole rule: mass fractions t and b at lag 8, F4 of each cell, KL of lag 8 (lag 0: 0)."""
    outcomes = {
        "lag_bites": decide(PREMISE, on_one_seed(0.1, kl, 0.0, 0.0), ["0"]),
        "mass_ratio": decide(RATIO, on_one_seed(0.0, t, 0.0, b), ["0"]),
        "f4_drop_difference": decide(DROP, f4, ["q"]),
    }
    return decision(RULE, outcomes).verdict


@pytest.mark.parametrize(
    ("t", "b", "drop", "expected"),
    [
        (0.30, 0.20, 0.05, "VALIDATED"),
        (0.30, 0.20, 0.0499, "INCONCLUSIVE"),
        (0.2999, 0.20, 0.05, "INCONCLUSIVE"),
        (0.24, 0.20, 0.0, "INCONCLUSIVE"),
        (0.2399, 0.20, 0.0, "REFUTED"),
        (0.2399, 0.20, 0.0499, "REFUTED"),
        (0.2399, 0.20, 0.05, "INCONCLUSIVE"),
        (0.2399, 0.20, -0.05, "REFUTED"),
        (0.2399, 0.20, -0.0501, "INCONCLUSIVE"),
        (0.30, 0.20, -0.2, "INCONCLUSIVE"),
        (0.30, 0.00, 0.05, "VALIDATED"),
        (0.00, 0.00, 0.05, "INVALID"),
    ],
)
def test_the_card_at_its_edges(t: float, b: float, drop: float, expected: str) -> None:
    """Ratio from 1.5 and drop from 5 points; ratio below 1.2 and drop within 5 points; else no."""
    assert verdict(t, b, items(drop)) == expected


@given(UNIT, UNIT, st.lists(UNIT, min_size=4, max_size=4))
def test_every_outcome_is_reached_by_its_own_region_alone(t: float, b: float, f4: list[float]):
    """The verdict is what the card's sentences say in exact arithmetic, and never two at once."""
    cells = {cell: {"q": value} for cell, value in zip(CELLS, f4, strict=True)}
    exact = [Fraction(str(value)) for value in (t, b, *f4)]
    mass_t, mass_b = exact[:2]
    drop = exact[2] - exact[3] - exact[4] + exact[5]
    validated = mass_t >= Fraction(3, 2) * mass_b and drop >= Fraction(1, 20)
    refuted = mass_t < Fraction(6, 5) * mass_b and Fraction(-1, 20) <= drop < Fraction(1, 20)
    assert not (validated and refuted)
    expected = "VALIDATED" if validated else "REFUTED" if refuted else "INCONCLUSIVE"
    assert verdict(t, b, cells) == ("INVALID" if t == b == 0 else expected)


@pytest.mark.parametrize(("t", "drop"), [(0.4, 0.2), (0.1, 0.0), (0.3, 0.0)])
def test_without_its_premise_the_rule_says_nothing_but_what_comes_next(t: float, drop: float):
    """KL of lag 8 below three times that of lag 0: INCONCLUSIVE, and the next step is named."""
    assert verdict(t, 0.2, items(drop), kl=0.2999) is Verdict.INCONCLUSIVE
    outcomes = {
        "lag_bites": decide(PREMISE, on_one_seed(0.1, 0.2999, 0.0, 0.0), ["0"]),
        "mass_ratio": decide(RATIO, on_one_seed(0.0, t, 0.0, 0.2), ["0"]),
        "f4_drop_difference": decide(DROP, items(drop), ["q"]),
    }
    for outcome in decision(RULE, outcomes).outcomes.values():
        assert outcome.inconclusive
        assert outcome.sentence.endswith("Next step: rerun at lag 16.")


def test_a_premise_holds_at_three_times_exactly() -> None:
    """0.3 is at least 3 times 0.1 though it is not in doubles."""
    assert decide(PREMISE, on_one_seed(0.1, 0.3, 0.0, 0.0), ["0"]).validated


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_decides_nothing(value: float) -> None:
    """A NaN or infinite fraction or F4 makes the criterion INVALID, in a sentence."""
    broken = decide(RATIO, on_one_seed(0.0, value, 0.0, 0.1), ["0"])
    assert broken.invalid
    assert broken.problems
    assert decide(DROP, {cell: {"q": value} for cell in CELLS}, ["q"]).invalid


def test_the_refuting_range_is_in_the_sentence() -> None:
    """A reader sees both ends of what refutes."""
    outcome = decide(DROP, items(-0.2), ["q"])
    assert outcome.inconclusive
    assert "lies below +5.00 points and not below -5.00 points" in outcome.sentence


def test_both_criteria_can_come_out_both_ways() -> None:
    """The registered ranges can be reached, from either side."""
    for criterion, n in ((RATIO, 1), (DROP, 64), (PREMISE, 1)):
        assert can_come_out_both_ways(criterion, n) == []


def test_a_refuting_range_without_room_is_refused() -> None:
    """Its least value lies below its margin, and the contrast can reach it."""
    for changes in ({"refuted_from": 0.05}, {"refuted": None}):
        with pytest.raises(CardError, match="give both, the smaller one first"):
            Criterion(
                **{
                    "id": "x",
                    "weights": DROPS,
                    "margin": 0.05,
                    "refuted": (DROPS, 0.05),
                    "refuted_from": -0.05,
                    **STATED,
                    **changes,
                }
            )
    beyond = Criterion(
        id="x", weights=DROPS, margin=1.5, refuted=(DROPS, 4.0), refuted_from=3.0, **STATED
    )
    problems = can_come_out_both_ways(beyond, 4)
    assert any("at most 2, it refutes from 3" in problem for problem in problems)
