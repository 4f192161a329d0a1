"""From a registered criterion and scores to a verdict."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from harness.cards import CriterionSpec, DecisionRule
from harness.decisions import METHODS, Criterion, Unit, Verdict, decide, method_named
from harness.decisions.rule import registered_order
from harness.errors import CardError

Registered = Callable[..., Criterion]
Table = Callable[[int, int, int, int], tuple[Any, list[str]]]
SEEDS = ["0", "1", "2"]


@pytest.mark.parametrize(
    ("b", "c", "verdict"),
    [
        (150, 117, Verdict.VALIDATED),
        (149, 117, Verdict.INCONCLUSIVE),
        (20, 184, Verdict.INCONCLUSIVE),
        (20, 185, Verdict.REFUTED),
    ],
)
def test_edges_of_the_registered_rule(
    registered: Registered, table: Table, b: int, c: int, verdict: Verdict
) -> None:
    """At n=1319 net +33 validates and +32 does not, -165 refutes and -164 does not."""
    scores, ids = table(800, b, c, 1319 - 800 - b - c)
    outcome = decide(registered(), scores, ids)
    assert outcome.verdict is verdict
    assert outcome.n == outcome.n_registered == 1319
    assert outcome.range == 2.0
    assert outcome.counts is not None
    assert outcome.counts.net == b - c
    assert outcome.estimate == pytest.approx((b - c) / 1319)
    assert outcome.half_width == pytest.approx(0.0747893625811)
    assert (outcome.lower, outcome.upper) == pytest.approx(
        (outcome.estimate - outcome.half_width, outcome.estimate + outcome.half_width)
    )


def test_outcome_properties_say_the_same_as_the_verdict(
    registered: Registered, table: Table
) -> None:
    """Exactly one of validated, refuted, inconclusive and invalid holds."""
    for cells in ((800, 150, 117, 252), (800, 149, 117, 253), (800, 20, 185, 314)):
        scores, ids = table(*cells)
        for wanted in (ids, [*ids, "another"]):
            o = decide(registered(), scores, wanted)
            said = {
                Verdict.VALIDATED: o.validated,
                Verdict.REFUTED: o.refuted,
                Verdict.INCONCLUSIVE: o.inconclusive,
                Verdict.INVALID: o.invalid,
            }
            assert [verdict for verdict, holds in said.items() if holds] == [o.verdict]


def test_sentences_name_margin_direction_and_subject(registered: Registered, table: Table) -> None:
    """Every sentence gives points and raw numbers, the margin, and the misreading to avoid."""
    expected = {
        (150, 117): ("lies above the margin of -5 points", "does not show that it lies above 0"),
        (149, 117): ("neither above nor below the margin", "not evidence that there is no effect"),
        (20, 185): ("lies below the margin of -5 points", "n=1319"),
    }
    for (b, c), parts in expected.items():
        scores, ids = table(800, b, c, 519 - b - c)
        sentence = decide(registered(), scores, ids).sentence
        for part in (*parts, "treatment - baseline", "these checkpoints", "margin -0.05", "95%"):
            assert part in sentence
        assert "\n" not in sentence
    scores, ids = table(800, 150, 117, 252)
    assert (
        "estimate +2.50, limits [-4.98, +9.98] points (raw +0.025019,"
        in decide(registered(), scores, ids).sentence
    )


def test_no_caution_where_the_interval_clears_zero(registered: Registered, table: Table) -> None:
    """A contrast that is shown to lie above zero carries no warning that it is not."""
    scores, ids = table(700, 400, 100, 119)
    assert "does not show" not in decide(registered(), scores, ids).sentence


def test_scores_outside_zero_to_one_are_not_points(registered: Registered) -> None:
    """Only scores in [0, 1] are printed in points."""
    ids = [str(i) for i in range(50)]
    scores = {"treatment": dict.fromkeys(ids, 3.0), "baseline": dict.fromkeys(ids, 1.0)}
    sentence = decide(registered(bounds=(0, 5), margin=-1.0), scores, ids).sentence
    assert " points" not in sentence
    assert "estimate +2," in sentence


def test_difference_of_differences_is_a_set_of_weights(registered: Registered) -> None:
    """Four cells have range 4, twice the half-width of two arms, and one contrast per item."""
    ids = [str(i) for i in range(200)]
    cells = {"treated_lag0": 1, "treated_lag4": -1, "plain_lag0": -1, "plain_lag4": 1}
    scores = {cell: {i: float(int(i) % 2) for i in ids} for cell in cells}
    scores["treated_lag4"] = dict.fromkeys(ids, 0.0)
    outcome = decide(registered(weights=cells, margin=0.0), scores, ids)
    pair = decide(
        registered(weights={"treated_lag0": 1, "treated_lag4": -1}, margin=0.0), scores, ids
    )
    assert (outcome.range, pair.range) == (4.0, 2.0)
    assert outcome.half_width == pytest.approx(2 * pair.half_width)
    assert outcome.estimate == pytest.approx(0.5)
    assert outcome.counts is None


def test_arms_without_weight_do_not_matter(registered: Registered, table: Table) -> None:
    """A third arm, present or absent, scored or not, leaves the outcome as it was."""
    scores, ids = table(800, 150, 117, 252)
    plain = decide(registered(), scores, ids)
    weights = {"treatment": 1, "baseline": -1, "ablation": 0}
    assert decide(registered(weights=weights), scores, ids) == plain
    assert decide(registered(), {**scores, "ablation": {"x": 7.0}}, ids) == plain


def test_item_order_does_not_matter(registered: Registered, table: Table) -> None:
    """Scores are joined on ids: shuffled rows give the same outcome."""
    scores, ids = table(80, 30, 10, 40)
    order = np.random.default_rng(0).permutation(len(ids))
    shuffled = {
        "treatment": {ids[i]: scores["treatment"][ids[i]] for i in order},
        "baseline": scores["baseline"],
    }
    assert decide(registered(), shuffled, ids) == decide(registered(), scores, ids)


def test_missing_items_make_it_invalid_and_never_a_smaller_n(
    registered: Registered, table: Table
) -> None:
    """Without its lost items the treatment would have passed; with them nothing is decided."""
    scores, ids = table(800, 149, 117, 253)
    lost = [i for i in ids if scores["treatment"][i] == 0][:13]
    kept = [i for i in ids if i not in lost]
    partial = {arm: {i: rows[i] for i in kept} for arm, rows in scores.items()}
    assert decide(registered(), partial, kept).validated
    outcome = decide(registered(), {**scores, "treatment": partial["treatment"]}, ids)
    assert outcome.invalid
    assert (outcome.estimate, outcome.lower, outcome.upper, outcome.p_validated) == (None,) * 4
    assert outcome.problems == (
        "arm treatment: 13 of 1319 items without a score; score them, none may be dropped"
        f" ({', '.join(lost[:3])}, ...)",
    )
    assert outcome.problems[0] in outcome.sentence


def test_item_scored_zero_counts(registered: Registered, table: Table) -> None:
    """A timeout that the evaluation scored 0 stays in the denominator."""
    scores, ids = table(50, 10, 10, 30)
    timed_out = {**scores["treatment"], **dict.fromkeys(ids[:5], 0)}
    outcome = decide(registered(), {**scores, "treatment": timed_out}, ids)
    assert outcome.n == 100
    assert outcome.estimate == pytest.approx(-0.05)


@pytest.mark.parametrize("bad", [1.2, -0.1, float("nan"), float("inf"), "1", None])
def test_scores_outside_their_bounds_are_invalid(
    registered: Registered, table: Table, bad: object
) -> None:
    """One score that no bound covers voids the guarantee, so nothing is decided."""
    scores, ids = table(800, 150, 117, 252)
    wrong = {**scores, "treatment": {**scores["treatment"], ids[3]: bad}}
    outcome = decide(registered(), wrong, ids)
    assert outcome.invalid
    assert ids[3] in outcome.sentence


def test_all_problems_at_once(registered: Registered) -> None:
    """Every arm's problems are reported together."""
    outcome = decide(registered(), {"treatment": {"a": 1, "x": 1}}, ["a", "b"])
    assert outcome.problems == (
        "arm baseline: no scores at all; evaluate it",
        "arm treatment: 1 of 2 items scored but not registered (x)",
        "arm treatment: 1 of 2 items without a score; score them, none may be dropped (b)",
    )


@pytest.mark.parametrize("method", ["paired_hoeffding", "paired_empirical_bernstein"])
@pytest.mark.parametrize("sides", [1, 2])
def test_near_tie_is_compared_exactly(
    registered: Registered, table: Table, method: str, sides: int
) -> None:
    """A margin 1e-14 on either side of the limit gets the verdict that exact arithmetic gives."""
    scores, ids = table(10, 40, 3, 10)
    base = registered(method=method, sides=sides, margin=-0.4)
    limit = decide(base, scores, ids).lower
    assert limit is not None
    said = {}
    for offset in (-1e-14, -1e-15, 0.0, 1e-15, 1e-14):
        outcome = decide(dataclasses.replace(base, margin=limit + offset), scores, ids)
        assert "compared exactly" in outcome.notes[0]
        said[offset] = outcome.verdict
    assert said[-1e-14] is Verdict.VALIDATED
    assert said[1e-14] is Verdict.INCONCLUSIVE
    ordered = list(said.values())
    assert ordered == sorted(ordered, reverse=True), "VALIDATED first, then INCONCLUSIVE"


def test_near_tie_on_the_upper_side_is_compared_exactly(
    registered: Registered, table: Table
) -> None:
    """REFUTED gets the same exact comparison, mirrored."""
    scores, ids = table(10, 3, 40, 10)
    limit = decide(registered(), scores, ids).upper
    assert limit is not None
    assert decide(registered(margin=limit + 1e-14), scores, ids).refuted
    assert decide(registered(margin=limit - 1e-14), scores, ids).inconclusive


def test_near_tie_without_an_exact_form_decides_nothing(
    registered: Registered, table: Table
) -> None:
    """Tango's limit is a root: within 1e-12 of the margin it neither validates nor refutes."""
    scores, ids = table(10, 40, 3, 10)
    limit = decide(registered(method="paired_tango"), scores, ids).lower
    assert limit is not None
    outcome = decide(registered(method="paired_tango", margin=limit - 1e-13), scores, ids)
    assert outcome.inconclusive
    assert "no exact form" in outcome.notes[0]


def test_exact_values_are_the_decimals_as_written(registered: Registered) -> None:
    """Scores of 0.1 and 0.3 count as 1/10 and 3/10 when a tie is resolved."""
    from harness.decisions.pairing import paired_scores
    from harness.decisions.rule import sample_of

    rows = {"treatment": {"a": 0.3, "b": 0.1}, "baseline": {"a": 0.1, "b": 0.1}}
    criterion = registered(weights={"treatment": 1, "baseline": -1.5})
    sample = sample_of(criterion, paired_scores(rows, ["a", "b"]), None)
    assert sample.exact_values() == {Fraction(3, 20): 1, Fraction(-1, 20): 1}


def test_mcnemar_agrees_with_its_p(registered: Registered, table: Table) -> None:
    """VALIDATED exactly when treatment wins more often and the exact two-sided p is below alpha."""
    for b, c, verdict in ((150, 117, "VALIDATED"), (149, 117, "INCONCLUSIVE"), (0, 6, "REFUTED")):
        scores, ids = table(10, b, c, 10)
        outcome = decide(registered(method="mcnemar_exact", margin=0), scores, ids)
        assert outcome.verdict == verdict
        p = outcome.p_refuted if verdict == "REFUTED" else outcome.p_validated
        assert p is not None
        assert (p < 0.05) == (verdict != "INCONCLUSIVE")


def test_mcnemar_tie_at_alpha_is_not_below_alpha(registered: Registered, table: Table) -> None:
    """Five wins of five have p = 1/16 exactly; at alpha 1/16 that is not below alpha."""
    scores, ids = table(1, 5, 0, 1)
    at = decide(registered(method="mcnemar_exact", margin=0, alpha=0.0625), scores, ids)
    assert at.inconclusive
    above = decide(registered(method="mcnemar_exact", margin=0, alpha=0.0626), scores, ids)
    assert above.validated


def test_mcnemar_without_discordant_pairs(registered: Registered, table: Table) -> None:
    """Arms that agree on every item are told apart by nothing."""
    scores, ids = table(5, 0, 0, 5)
    outcome = decide(registered(method="mcnemar_exact", margin=0), scores, ids)
    assert outcome.inconclusive
    assert outcome.p_validated == outcome.p_refuted == 1.0


def test_seed_t_speaks_of_the_method(registered: Registered) -> None:
    """With seeds as the unit, n counts seeds and the sentence says so."""
    scores = {
        "treatment": dict(zip(SEEDS, [0.60, 0.62, 0.61], strict=True)),
        "baseline": dict(zip(SEEDS, [0.50, 0.51, 0.52], strict=True)),
    }
    criterion = registered(method="seed_t", unit=Unit.SEEDS, seeds=(0, 1, 2), margin=0.0)
    outcome = decide(criterion, scores, SEEDS)
    assert outcome.validated
    assert outcome.n == 3
    assert "the method over 3 seeds" in outcome.sentence
    assert "checkpoints" not in outcome.sentence


def test_items_are_not_seeds(registered: Registered, table: Table) -> None:
    """A seed-level rule that is handed item scores is INVALID, whatever the scores."""
    scores, ids = table(80, 50, 10, 20)
    criterion = registered(method="seed_t", unit=Unit.SEEDS, seeds=(0, 1, 2))
    outcome = decide(criterion, scores, ids)
    assert outcome.invalid
    assert "160 scores were given as seeds" in outcome.problems[0]


def test_seeds_without_spread_are_invalid(registered: Registered) -> None:
    """Three seeds with one and the same difference have no t interval."""
    scores = {"treatment": dict.fromkeys(SEEDS, 0.6), "baseline": dict.fromkeys(SEEDS, 0.5)}
    criterion = registered(method="seed_t", unit=Unit.SEEDS, seeds=(0, 1, 2))
    assert "t needs values that differ" in decide(criterion, scores, SEEDS).sentence


def test_clusters_widen_the_interval(registered: Registered, table: Table) -> None:
    """Items of one template that agree are fewer observations than items."""
    scores, ids = table(0, 60, 20, 40)
    apart = {item: item for item in ids}
    together = {item: i // 10 for i, item in enumerate(ids)}
    criterion = registered(method="clustered_t")
    single = decide(criterion, scores, ids, clusters=apart)
    clustered = decide(criterion, scores, ids, clusters=together)
    assert (single.n, clustered.n) == (120, 12)
    assert clustered.half_width > 2.5 * single.half_width
    assert "were given" in decide(criterion, scores, ids).problems[0]
    assert (
        "1 items have no cluster"
        in decide(criterion, scores, ids, clusters=dict.fromkeys(ids[1:], 0)).problems[0]
    )


def test_betting_follows_the_registered_order(registered: Registered, table: Table) -> None:
    """The order is sha256(order_key + id): another key, another interval; rows do not matter."""
    scores, ids = table(100, 60, 40, 100)
    first = decide(registered(method="paired_betting_cs", order_key="a"), scores, ids)
    again = decide(registered(method="paired_betting_cs", order_key="a"), scores, ids[::-1])
    other = decide(registered(method="paired_betting_cs", order_key="b"), scores, ids)
    assert (first.lower, first.upper) == (again.lower, again.upper)
    assert first.lower != other.lower
    assert registered_order("a", ids).tolist() != list(range(300))
    assert registered_order(None, ids).tolist() == list(range(300))


def test_betting_keeps_what_it_has_shown(registered: Registered, table: Table) -> None:
    """What was ruled out at some item stays out: looking after every item adds no error."""
    _, ids = table(0, 0, 0, 60)
    criterion = registered(method="paired_betting_cs", order_key="k", margin=0.0)
    order = [ids[i] for i in registered_order("k", ids)]
    wins = dict(zip(order, [1] * 40 + [0] * 20, strict=True))
    losses = {item: 1 - score for item, score in wins.items()}
    scores = {"treatment": wins, "baseline": losses}
    looks = []
    for t in range(1, 61):
        seen = order[:t]
        rows = {arm: {i: s[i] for i in seen} for arm, s in scores.items()}
        looks.append(decide(criterion, rows, seen))
    p = [look.p_validated for look in looks]
    assert p == sorted(p, reverse=True)
    assert looks[39].validated
    assert looks[59].validated


def test_unknown_method_lists_the_known_ones(registered: Registered, table: Table) -> None:
    """A method that does not exist is a fault of the card, named with what does exist."""
    scores, ids = table(1, 1, 1, 1)
    with pytest.raises(CardError) as caught:
        decide(registered(method="bootstrap"), scores, ids)
    assert all(name in str(caught.value) for name in METHODS)
    with pytest.raises(CardError, match="unknown decision method"):
        method_named("paired-hoeffding")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "mcnemar_exact"}, "margin 0 only, the margin is -0.05"),
        ({"method": "paired_betting_cs"}, "register an order_key"),
        ({"method": "paired_tango", "weights": {"treatment": 1, "baseline": -1.5}}, "weights"),
        ({"method": "paired_cp_bonferroni", "bounds": (0, 2)}, "scores of 0 or 1"),
        ({"method": "paired_empirical_bernstein", "log_events": 2}, "log_events is 2"),
        ({"method": "seed_t"}, "counts seeds, the unit is fixed_checkpoint_items"),
        ({"unit": "seeds"}, "counts fixed_checkpoint_items, the unit is seeds"),
        ({"method": "seed_t", "unit": "seeds", "seeds": (0, 1)}, "at least 3 seeds, 2 registered"),
    ],
)
def test_method_that_does_not_fit_its_criterion(
    registered: Registered, table: Table, changes: dict[str, Any], message: str
) -> None:
    """A criterion that its method can't decide is refused before any score is read."""
    scores, ids = table(1, 1, 1, 1)
    with pytest.raises(CardError, match=message):
        decide(registered(**changes), scores, ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": 1.0}, "alpha is 1.0"),
        ({"sides": 0}, "sides is 0"),
        ({"margin": float("nan")}, "margin is nan"),
        ({"unit": "prompts"}, "unknown unit 'prompts'"),
        ({"weights": {"treatment": 0}}, "non-zero weight"),
        ({"weights": {"treatment": float("inf")}}, "must be finite"),
        ({"bounds": (1, 0)}, "lo must be below hi"),
    ],
)
def test_criterion_refuses_impossible_numbers(
    registered: Registered, changes: dict[str, Any], message: str
) -> None:
    """A criterion that no rule can be built on is a CardError that names criterion and value."""
    with pytest.raises(CardError, match=message) as caught:
        registered(**changes)
    assert "criterion primary" in str(caught.value)


def test_sides_must_be_stated() -> None:
    """One- or two-sided is never a default of the criterion: 6.74 against 7.48 points."""
    with pytest.raises(TypeError, match="sides"):
        Criterion("c", "accuracy", {"a": 1}, (0, 1), 0.5, 0.05)


def test_range_can_not_be_stated() -> None:
    """The range follows from weights and bounds; no field lets a card give another one."""
    assert "range" not in {field.name for field in dataclasses.fields(Criterion)}


@pytest.mark.parametrize(("sides", "points"), [(1, 6.740), (2, 7.479)])
def test_one_and_two_sided_widths(
    registered: Registered, table: Table, sides: int, points: float
) -> None:
    """The same alpha on one side is 6.74 points wide at n=1319, on two sides 7.48."""
    scores, ids = table(800, 150, 117, 252)
    outcome = decide(registered(sides=sides), scores, ids)
    assert outcome.half_width == pytest.approx(points / 100, abs=5e-6)


def test_binary_method_refuses_fractional_scores(registered: Registered, table: Table) -> None:
    """Tango on a score of 0.5 is INVALID, Hoeffding on the same scores decides."""
    scores, ids = table(50, 40, 5, 5)
    half = {**scores, "treatment": {**scores["treatment"], ids[0]: 0.5}}
    assert "0 or 1" in decide(registered(method="paired_tango"), half, ids).problems[0]
    hoeffding = decide(registered(), half, ids)
    assert not hoeffding.invalid
    assert hoeffding.counts is None


def test_criterion_from_a_card() -> None:
    """A card's stated criterion and rule give the two-sided criterion of the same numbers."""
    stated = CriterionSpec(
        id="primary", metric="accuracy", weights={"t": 1, "b": -1}, bounds=(0, 1), margin=-0.05
    )
    rule = DecisionRule(
        version=1,
        alpha=0.05,
        method="paired_hoeffding",
        unit="fixed_checkpoint_items",
        estimand="t minus b",
        seeds=[0],
        criteria=[stated],
    )
    criterion = Criterion.resolved(stated, rule)
    assert (criterion.sides, criterion.seeds, criterion.pair) == (2, (0,), ("t", "b"))
    assert (criterion.order_key, criterion.log_events, criterion.premise) == (None, None, False)

    fuller = rule.model_copy(update={"sides": 1, "order_key": "key", "log_events": 3})
    criterion = Criterion.resolved(stated, fuller)
    assert (criterion.sides, criterion.order_key, criterion.log_events) == (1, "key", 3)


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if not m.by_estimate])
def test_p_values_agree_with_verdicts(registered: Registered, table: Table, name: str) -> None:
    """p_validated is below alpha exactly when VALIDATED, p_refuted exactly when REFUTED."""
    for b, c in ((60, 5), (30, 25), (20, 20), (5, 60)):
        scores, ids = table(40, b, c, 160 - 40 - b - c)
        changes: dict[str, Any] = {"method": name, "margin": 0.0}
        clusters = {i: k // 4 for k, i in enumerate(ids)} if name == "clustered_t" else None
        if name == "paired_betting_cs":
            changes["order_key"] = "key"
        if name == "seed_t":
            ids = ["0", "1", "2", "3"]
            noise = [0.0, 0.01, -0.01, 0.02]
            baseline = dict.fromkeys(ids, 0.4)
            scores = {
                "treatment": {i: 0.4 + (b - c) / 200 + e for i, e in zip(ids, noise, strict=True)},
                "baseline": baseline,
            }
            changes |= {"unit": "seeds", "seeds": (0, 1, 2, 3)}
        outcome = decide(registered(**changes), scores, ids, clusters=clusters)
        assert outcome.p_validated is not None
        assert outcome.p_refuted is not None
        assert (outcome.p_validated < 0.05) == outcome.validated
        assert (outcome.p_refuted < 0.05) == outcome.refuted
        assert not outcome.invalid
