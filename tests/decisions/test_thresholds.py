import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from harness import cards
from harness.decisions import Criterion, Verdict, can_come_out_both_ways, decide
from harness.errors import CardError

CELLS = ("tailrl_lag0", "tailrl_lag4", "grpo_lag0", "grpo_lag4")
DROPS = dict(zip(CELLS, (1, -1, -1, 1), strict=True))
CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "field_cases.json").read_text())
}


@pytest.fixture(name="drops")
def _drops(registered):
    """A difference of differences: VALIDATED from +3 points, REFUTED below +1."""
    return registered(weights=DROPS, margin=0.03, method="point_thresholds", refuted=(DROPS, 0.01))


@pytest.fixture(name="ratio")
def _ratio(registered):
    """At least 1.5 times, or less than 1.2 times, over two seeds."""

    def build(**changes):
        stated = {
            "weights": {"t": 1, "b": -1.5},
            "margin": 0.0,
            "method": "point_thresholds",
            "refuted": ({"t": 1, "b": -1.2}, 0.0),
            "unit": "seeds",
            "seeds": (0, 1),
        }
        return registered(**(stated | changes))

    return build


def net(k, n=500):
    """Scores of four cells whose contrast sums to k over n items."""
    ids = [f"i{i}" for i in range(n)]
    wins = dict.fromkeys(ids, 0) | dict.fromkeys(ids[: abs(k)], 1)
    zero = dict.fromkeys(ids, 0)
    won = "tailrl_lag0" if k > 0 else "tailrl_lag4"
    return {cell: wins if cell == won else zero for cell in CELLS}, ids


def seeds(t, b):
    """Two seeds' numbers of each role."""
    return {"t": dict(zip("01", t, strict=True)), "b": dict(zip("01", b, strict=True))}


@pytest.mark.parametrize(
    ("k", "verdict"),
    [(15, "VALIDATED"), (14, "INCONCLUSIVE"), (5, "INCONCLUSIVE"), (4, "REFUTED"), (-1, "REFUTED")],
)
def test_thresholds_are_exact_at_their_edges(drops, k, verdict):
    """15 of 500 items are 3 points and validate; 5 are 1 point and do not refute."""
    outcome = decide(drops, *net(k))

    assert outcome.verdict == verdict
    assert outcome.estimate == pytest.approx(k / 500)
    assert outcome.sentence.startswith(f"{verdict}: ")
    assert outcome.range == 4.0


def test_limits_are_shown_and_not_used(drops):
    """At 500 items and range 4 Hoeffding's limits are 24.3 points away and decide nothing."""
    outcome = decide(drops, *net(30))

    assert outcome.validated
    assert outcome.half_width == pytest.approx(0.24294, abs=1e-4)
    assert outcome.lower < 0.03
    assert "are shown and not used" in outcome.sentence
    assert outcome.p_validated is None


@pytest.mark.parametrize(
    ("t", "b", "verdict"),
    [
        ((0.3, 0.3), (0.2, 0.2), "VALIDATED"),
        ((0.29, 0.3), (0.2, 0.2), "INCONCLUSIVE"),
        ((0.24, 0.24), (0.2, 0.2), "INCONCLUSIVE"),
        ((0.23, 0.24), (0.2, 0.2), "REFUTED"),
        ((0.1, 0.0), (0.0, 0.0), "VALIDATED"),
        ((0.0, 0.0), (0.1, 0.0), "REFUTED"),
        ((0.0, 0.0), (0.0, 0.0), "INVALID"),
    ],
)
def test_a_ratio_rule_is_linear_and_exact(ratio, t, b, verdict):
    """0.3 is 1.5 times 0.2 though not in doubles; a baseline of 0 is no division by 0."""
    assert decide(ratio(), seeds(t, b), ["0", "1"]).verdict == verdict


def test_every_value_has_exactly_one_outcome(ratio):
    """Over a grid of pairs the two comparisons never hold at once and always leave a verdict."""
    grid = np.linspace(0.0, 1.0, 41).round(3).tolist()
    for t, b in itertools.product(grid, grid):
        outcome = decide(ratio(), seeds((t, t), (b, b)), ["0", "1"])
        above, below = round(t - 1.5 * b, 9) >= 0, round(t - 1.2 * b, 9) < 0
        assert not (above and below)
        expected = "VALIDATED" if above else "REFUTED" if below else "INCONCLUSIVE"
        assert outcome.verdict == ("INVALID" if t == b == 0.0 else expected), (t, b)


def test_without_a_refuting_contrast_nothing_refutes(ratio):
    """A card that names no refutation gets none: below the margin it is INCONCLUSIVE."""
    rule = ratio(refuted=None)

    assert decide(rule, seeds((0.1, 0.1), (0.5, 0.5)), ["0", "1"]).inconclusive
    assert can_come_out_both_ways(rule, 1) == []


@pytest.mark.parametrize(
    ("t", "b", "verdict"),
    [
        ((0.5, 0.6), (0.2, 0.25), "VALIDATED"),  # gap 0.325 against 2 x 0.1
        ((0.4, 0.5), (0.2, 0.3), "INCONCLUSIVE"),  # gap 0.2 is exactly 2 ranges
        ((0.3, 0.4), (0.2, 0.3), "REFUTED"),  # gap 0.1 is exactly 1 range
        ((0.2, 0.2), (0.3, 0.3), "REFUTED"),  # a negative gap without any range
        ((0.31, 0.41), (0.25, 0.25), "INCONCLUSIVE"),
    ],
)
def test_the_seed_range_rule_takes_the_larger_range(ratio, t, b, verdict):
    """VALIDATED above twice the larger of both roles' ranges, REFUTED up to once."""
    rule = ratio(
        weights={"t": 1, "b": -1}, method="seed_range", refuted=None, seed_range=(2.0, 1.0)
    )

    outcome = decide(rule, seeds(t, b), ["0", "1"])

    assert outcome.verdict == verdict
    assert outcome.lower is None
    assert "with 2 seeds and no effect this happens 3.5% of the time" in outcome.sentence
    assert "more seeds make it harder" in outcome.sentence


def test_the_caveat_of_two_seeds_is_what_chance_gives():
    """Normal noise and no effect: a gap above twice the larger range in 3.5% of experiments."""
    generator = np.random.Generator(np.random.PCG64(0))
    t, b = generator.normal(size=(2, 100_000, 2))
    noise = np.maximum(np.ptp(t, axis=1), np.ptp(b, axis=1))

    share = float((t.mean(axis=1) - b.mean(axis=1) > 2.0 * noise).mean())

    assert share == pytest.approx(0.035, abs=0.002)


def test_one_seed_has_no_range(ratio):
    """Its range is 0, so any gap would pass: it can't be registered."""
    rule = ratio(
        weights={"t": 1, "b": -1},
        method="seed_range",
        refuted=None,
        seed_range=(2.0, 1.0),
        seeds=(0,),
    )
    with pytest.raises(CardError, match="seed_range needs at least 2 seeds, 1 registered"):
        decide(rule, {}, ["0"])


def test_a_seed_without_a_number_makes_it_invalid(ratio):
    """Missing data is never a smaller number of seeds."""
    assert decide(ratio(), {"t": {"0": 0.3}, "b": {"0": 0.2, "1": 0.2}}, ["0", "1"]).invalid


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"refuted": ({"t": 1, "b": -1.6}, 0.0)}, "VALIDATED and REFUTED at once"),
        ({"refuted": ({"t": 1, "b": -1.5}, 0.1)}, "VALIDATED and REFUTED at once"),
        ({"margin": 1.5}, "can't be VALIDATED"),
        ({"margin": -1.6}, "is always VALIDATED"),
        ({"refuted": ({"t": 1, "b": -1.2}, -1.3)}, "can't be REFUTED"),
    ],
)
def test_rules_that_overlap_or_cant_be_met_are_found_before_the_run(ratio, changes, problem):
    """Both thresholds at once, or one that no data reach, are problems of the forecast."""
    assert any(problem in line for line in can_come_out_both_ways(ratio(**changes), 1))


@pytest.mark.parametrize("seed", range(30))
def test_overlap_is_found_exactly_where_a_search_finds_it(registered, seed):
    """The least refuting value where it is validated, against a fine grid of two means."""
    generator = np.random.Generator(np.random.PCG64(seed))
    w, v = generator.choice([-2.0, -1.5, -1.0, 1.0, 1.5, 2.0], size=2).tolist()
    margin = float(generator.choice([-0.5, 0.0, 0.25]))
    x, y = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
    validated = w * x + y >= margin
    if not validated.any() or validated.all():
        return
    lowest = float((v * x + y)[validated].min())
    for refuting, overlaps in ((lowest + 0.02, True), (lowest - 0.02, False)):
        rule = registered(
            weights={"t": w, "b": 1.0},
            margin=margin,
            method="point_thresholds",
            refuted=({"t": v, "b": 1.0}, refuting),
        )
        found = can_come_out_both_ways(rule, 500)
        assert any("at once" in line for line in found) is overlaps


def test_parts_of_a_rule_that_do_not_belong_together_are_refused(registered, ratio):
    """Seed ranges, refuting contrasts and multiples go with their own methods only."""
    with pytest.raises(CardError, match="do not go together"):
        decide(ratio(seed_range=(2.0, 1.0)), {}, [])
    with pytest.raises(CardError, match="drop the refuting contrast"):
        decide(registered(refuted=({"treatment": 1, "baseline": -1}, 0.0)), {}, [])
    with pytest.raises(CardError, match="the first must not be smaller"):
        ratio(seed_range=(1.0, 2.0))
    with pytest.raises(CardError, match="weigh the same arms"):
        ratio(refuted=({"t": 1}, 0.0))


def test_a_criterion_of_its_own_method_and_unit():
    """What a criterion names replaces the rule's: items and seeds in one rule."""
    own = cards.CriterionSpec(
        id="clip",
        metric="staleness/clip_raw",
        weights={"t": 1, "b": -1.5},
        bounds=(0, 1),
        margin=0.0,
        method="point_thresholds",
        unit="seeds",
        seeds=[3],
        refuted=cards.Threshold(weights={"t": 1, "b": -1.2}, margin=0.0),
    )
    rule = cards.DecisionRule(
        version=1,
        alpha=0.05,
        estimand="gap",
        method="paired_hoeffding",
        unit="fixed_checkpoint_items",
        seeds=[0],
        criteria=[own],
    )
    criterion = Criterion.resolved(own, rule)

    assert (criterion.method, criterion.unit, criterion.seeds) == (
        "point_thresholds",
        "seeds",
        (3,),
    )
    assert decide(criterion, {"t": {"3": 0.3}, "b": {"3": 0.2}}, ["3"]).verdict is Verdict.VALIDATED


def test_field_case_a_band_missed_by_a_little_stays_missed(registered):
    """E16: 2.8125 is below a band that starts at 2.88; nothing is rounded or widened."""
    case = CASES["E16"]
    low, _ = case["input"]["band"]
    rule = registered(
        weights={"t": 1},
        bounds=(0, 10),
        margin=low,
        method="point_thresholds",
        refuted=({"t": 1}, low),
        unit="seeds",
        seeds=(0,),
    )

    assert case["expected"]["verdict"] == "FAIL"
    assert decide(rule, {"t": {"0": case["input"]["value"]}}, ["0"]).refuted
