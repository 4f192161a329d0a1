import itertools
from dataclasses import replace

import pytest

from harness.audit.decided import (
    decision_problems,
    outcome_problems,
    rows_mean,
    steps_mean,
    threshold_verdicts,
    whole_verdict,
)
from harness.cards import CriterionSpec
from harness.cards.card import SecondLook
from harness.decisions import Criterion, Decision, Verdict, calls_for_second_look, decide, decision
from harness.errors import RunError
from harness.protocol.scores import item_scores

ITEMS = [f"test/{index:03d}" for index in range(200)]
MEANS = {"treatment": [0.8], "baseline": [0.1]}


@pytest.fixture(name="stated")
def _stated(experiment) -> CriterionSpec:
    """The card's criterion: treatment minus baseline above -0.05."""
    return experiment.rule.criteria[0]


@pytest.fixture(name="outcome")
def _outcome(experiment, stated):
    """A treatment that is right on 160 of 200 items, a baseline that is on 20."""
    right = {"treatment": 160, "baseline": 20}
    scores = {
        role: {item: float(place < n) for place, item in enumerate(ITEMS)}
        for role, n in right.items()
    }
    return decide(Criterion.resolved(stated, experiment.rule), scores, ITEMS)


def test_a_decision_that_follows_is_let_through(experiment, stated, outcome):
    """Estimate, margin and limits are those of the criterion and the means."""
    assert outcome.verdict is Verdict.VALIDATED
    assert outcome_problems(experiment.rule, stated, outcome, MEANS) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"estimate": -0.7}, "look for arms or signs exchanged"),
        ({"margin": 0.05}, "decided at the margin 0.05, -0.05 is registered"),
        ({"verdict": Verdict.REFUTED}, "REFUTED does not follow from limits"),
        ({"lower": -0.06}, "VALIDATED does not follow from limits"),
        ({"n_registered": 100}, "of 100 items make 0.428"),
        ({"method": "paired_tango"}, "decided by paired_tango, paired_hoeffding is registered"),
        ({"alpha": 0.1}, "alpha, sides, unit and metric 0.1, 2, fixed_checkpoint_items, accuracy"),
        ({"sides": 1}, "sides, unit and metric 0.05, 1, fixed_checkpoint_items, accuracy, 0.05, 2"),
        ({"lower": 0.6}, "lower limit 0.6, scores in (0.0, 1.0) of 200 items make 0.507"),
    ],
)
def test_a_decision_that_does_not_follow_is_named(experiment, stated, outcome, change, words):
    """Each figure that decides is held against the stored results."""
    lines = outcome_problems(experiment.rule, stated, replace(outcome, **change), MEANS)

    assert any(words in line for line in lines), lines


def test_exchanged_arms_are_named(experiment, stated, outcome):
    """The means of the roles say which one is ahead."""
    exchanged = {"treatment": MEANS["baseline"], "baseline": MEANS["treatment"]}

    (line,) = outcome_problems(experiment.rule, stated, outcome, exchanged)
    assert "estimate 0.7, the stored results of baseline and treatment make -0.7" in line


def test_an_invalid_outcome_has_nothing_to_compare(experiment, stated, outcome):
    """It says itself what is wrong."""
    invalid = replace(outcome, estimate=None, verdict=Verdict.INVALID)

    assert outcome_problems(experiment.rule, stated, invalid, MEANS) == []


def test_means_are_of_items_and_of_steps():
    """pass@2 of 1 right in 3 is 2/3; a mean over steps has every step."""
    rows = [
        {"item_id": "a", "correct": True, "correct_S": [True, False, False]},
        {"item_id": "b", "correct": False},
    ]
    figures = [{"step": step, "metrics": {"a/b": float(step)}} for step in range(5)]

    assert rows_mean(rows[:1], "pass@2") == pytest.approx(2 / 3)
    assert rows_mean(rows, "accuracy") == pytest.approx(1 / 6)
    assert steps_mean(figures, "a/b", 2, 4) == 3.0
    with pytest.raises(RunError, match="2 values in steps 3 to 5"):
        steps_mean(figures, "a/b", 3, 5)


def thresholds(**changed):
    """A criterion with thresholds on the estimate, as the search card has it."""
    stated = {
        "id": "drop", "metric": "f4", "weights": {"a": 1, "b": -1}, "bounds": (0, 1),
        "margin": 0.05, "refuted": {"weights": {"a": 1, "b": -1}, "margin": 0.05, "least": -0.05},
    }  # fmt: skip
    return CriterionSpec.model_validate(stated | changed, strict=False)


@pytest.mark.parametrize(
    ("a", "changed", "verdicts"),
    [
        ([0.8], {}, {"VALIDATED"}),
        ([0.52], {}, {"REFUTED"}),
        ([0.4], {}, {"INCONCLUSIVE"}),
        ([0.55], {}, {"VALIDATED", "REFUTED"}),
        ([0.45], {}, {"REFUTED", "INCONCLUSIVE"}),
        ([0.2], {"refuted": {"weights": {"a": 1, "b": -1}, "margin": 0.05}}, {"REFUTED"}),
        ([0.2], {"refuted": None}, {"INCONCLUSIVE"}),
        ([0.72, 0.68], {"seed_range": {"validated": 2, "refuted": 1}}, {"VALIDATED"}),
        ([0.6, 0.5], {"seed_range": {"validated": 2, "refuted": 1}}, {"REFUTED"}),
        ([0.72, 0.6], {"seed_range": {"validated": 2, "refuted": 1}}, {"INCONCLUSIVE"}),
    ],
)
def test_thresholds_are_compared_again(a, changed, verdicts):
    """VALIDATED from the margin up, REFUTED from `least` to below its margin, as registered."""
    found = threshold_verdicts(thresholds(**changed), {"a": a, "b": [0.5] * len(a)})

    assert found == set(verdicts)


def test_a_verdict_that_thresholds_do_not_make_is_named(experiment, outcome):
    """Whatever its limits say, which decide nothing here."""
    rule = experiment.rule.model_copy(update={"method": "point_thresholds"})
    changed = replace(
        outcome, method="point_thresholds", margin=0.05, verdict=Verdict.REFUTED, metric="f4"
    )
    means = {"a": [0.8], "b": [0.1]}

    (line,) = outcome_problems(rule, thresholds(), changed, means)
    assert "REFUTED does not follow from the registered thresholds" in line
    right = replace(changed, verdict=Verdict.VALIDATED)
    assert outcome_problems(rule, thresholds(), right, means) == []


STATED = ("lag", "clip", "drop")


def joint(experiment, combine):
    """A premise with a next step and two claims."""
    stated = experiment.rule.criteria[0]
    criteria = [
        stated.model_copy(update={"id": "lag", "premise": True, "next_step": "rerun at lag 16"}),
        *(stated.model_copy(update={"id": id}) for id in ("clip", "drop")),
    ]
    return experiment.rule.model_copy(update={"criteria": criteria, "combine": combine})


def reported(verdict, outcomes):
    """A decision on these criteria, with whatever verdict it is reported."""
    return Decision(verdict, "; ".join(o.sentence for o in outcomes.values()), outcomes)


@pytest.mark.parametrize(
    ("lag", "clip", "drop", "changed", "words"),
    [
        ("VALIDATED", "REFUTED", "VALIDATED", {}, "clip: REFUTED beside the others"),
        ("INCONCLUSIVE", "VALIDATED", "VALIDATED", {}, "drop: VALIDATED beside the others"),
        ("REFUTED", "INCONCLUSIVE", "INCONCLUSIVE", {}, "lag: REFUTED beside the others"),
        ("INCONCLUSIVE", "INCONCLUSIVE", "INCONCLUSIVE", {}, "next step: rerun at lag 16"),
        ("VALIDATED", "VALIDATED", "VALIDATED", {"drop": "REFUTED"}, "makes VALIDATED under"),
    ],
)
def test_criteria_that_say_more_than_the_rule_are_named(
    experiment, outcome, lag, clip, drop, changed, words
):
    """One that disagrees refutes nothing, without the premise nothing counts, and what is next."""
    rule = joint(experiment, "all_must_agree")
    verdicts = {"lag": lag, "clip": clip, "drop": drop}
    alone = {id: replace(outcome, id=id, verdict=Verdict(v)) for id, v in verdicts.items()}
    together = alone | {
        id: replace(alone[id], verdict=Verdict(verdict)) for id, verdict in changed.items()
    }

    lines = decision_problems(rule, alone, None, reported(Verdict.INCONCLUSIVE, together))
    assert any(words in line for line in lines)


HOLM = {"any_may_pass": Verdict.VALIDATED, "all_must_pass_holm_refuted": Verdict.REFUTED}


@pytest.mark.parametrize("combine", HOLM)
@pytest.mark.parametrize("p_values", list(itertools.product((0.001, 0.02, 0.03, None), repeat=3)))
def test_what_holm_withdraws_is_worked_out_again(experiment, outcome, combine, p_values):
    """Two computations agree on three claims at alpha 0.05; keeping or taking one more is named."""
    stated = experiment.rule.criteria[0]
    ids = ("a", "b", "c")
    criteria = [stated.model_copy(update={"id": id}) for id in ids]
    rule = experiment.rule.model_copy(update={"criteria": criteria, "combine": combine})
    own = HOLM[combine]
    alone = {
        id: replace(outcome, id=id, verdict=own, alpha=0.05, p_validated=p, p_refuted=p)
        for id, p in zip(ids, p_values, strict=True)
    }
    # one alone that says something else, so that nothing is refuted by all
    alone["c"] = replace(alone["c"], verdict=Verdict.INCONCLUSIVE)
    made = decision(rule, alone)

    assert decision_problems(rule, alone, None, made) == []
    for id in ("a", "b"):
        kept = made.outcomes[id].verdict is own
        other = replace(made.outcomes[id], verdict=Verdict.INCONCLUSIVE if kept else own)
        spoiled = replace(made, outcomes={**made.outcomes, id: other})
        line, *_ = decision_problems(rule, alone, None, spoiled)
        assert f"criterion {id}: {other.verdict} beside the others" in line


LOOK = SecondLook(criterion="claim", low=-0.1, high=0.8)


class TestLooks:
    @pytest.fixture
    def rule(self, experiment):
        """One criterion, which calls for a second look."""
        claim = experiment.rule.criteria[0].model_copy(update={"id": "claim"})
        return experiment.rule.model_copy(update={"criteria": [claim], "second_look": LOOK})

    @pytest.mark.parametrize("verdicts", list(itertools.product(Verdict, repeat=2)))
    def test_what_two_looks_say_is_worked_out_again(self, rule, outcome, verdicts):
        """Two computations agree, whatever each look says; another verdict is named."""
        first, second = (
            {"claim": replace(outcome, id="claim", verdict=verdict, estimate=estimate)}
            for verdict, estimate in zip(verdicts, (0.7, 0.6), strict=True)
        )
        if not calls_for_second_look(rule, first):
            assert decision_problems(rule, first, None, decision(rule, first)) == []
            (line,) = decision_problems(rule, first, second, decision(rule, first, second))
            assert line == "decided on 2 look(s), the first calls for 1"
            return
        made = decision(rule, first, second)

        assert decision_problems(rule, first, second, made) == []
        for other in set(Verdict) - {made.verdict}:
            spoiled = {"claim": replace(made.outcomes["claim"], verdict=other)}
            line, *_ = decision_problems(rule, first, second, reported(other, spoiled))
            said = " and ".join(verdicts)
            assert line.startswith(f"criterion claim: {other} beside the others, {said} alone")

    def test_a_look_that_was_left_out_is_named(self, rule, outcome):
        """An estimate in the registered range calls for it; without a second look none is."""
        first = {"claim": replace(outcome, id="claim", estimate=0.7)}
        made = decision(rule, first)

        (line,) = decision_problems(rule, first, None, made)
        assert line == "decided on 1 look(s), the first calls for 2"
        once = rule.model_copy(update={"second_look": None})
        assert decision_problems(once, first, None, made) == []

    def test_figures_of_the_first_look_alone_are_named(self, rule, outcome):
        """Of two looks the estimate is the mean, the limits are the outermost."""
        first = {"claim": replace(outcome, id="claim", estimate=0.7)}
        second = {"claim": replace(outcome, id="claim", estimate=0.6)}
        made = decision(rule, first, second)
        spoiled = {"claim": replace(made.outcomes["claim"], estimate=0.7)}

        (line,) = decision_problems(rule, first, second, replace(made, outcomes=spoiled))
        assert "two looks make the estimate 0.65" in line


@pytest.mark.parametrize(
    ("combine", "claims", "expected"),
    [
        ("all_must_pass", "VVV", "V"),
        ("all_must_pass", "VRV", "R"),
        ("all_must_pass", "VIV", "I"),
        ("all_must_pass_holm_refuted", "VRV", "R"),
        ("any_may_pass", "IVI", "V"),
        ("any_may_pass", "RIR", "I"),
        ("any_may_pass", "RRR", "R"),
        ("all_must_agree", "VVV", "V"),
        ("all_must_agree", "VIV", "I"),
        ("all_must_agree", "RIR", "I"),
        ("all_must_agree", "RRR", "R"),
        ("any_may_pass", "VXV", "X"),
    ],
)
@pytest.mark.parametrize("premise", "VRIX")
def test_claims_are_counted_again(experiment, combine, claims, expected, premise):
    """So many validate or refute under each rule, behind a premise that counts for nothing more."""
    words = {word[0]: word for word in Verdict} | {"I": Verdict.INCONCLUSIVE, "X": Verdict.INVALID}
    stated = experiment.rule.criteria[0]
    ids = ["lag", "a", "b", "c"]
    criteria = [stated.model_copy(update={"id": id, "premise": id == "lag"}) for id in ids]
    rule = experiment.rule.model_copy(update={"criteria": criteria, "combine": combine})
    if premise != "V":
        expected = "X" if "X" in premise + claims else "I"

    said = [words[letter] for letter in premise + claims]
    assert whole_verdict(rule, dict(zip(ids, said, strict=True))) is words[expected]


def test_a_decision_that_leaves_a_criterion_out_is_named(experiment, outcome):
    """Out of its outcomes or out of its sentence; a criterion that nobody registered as well."""
    rule = joint(experiment, "all_must_pass")
    alone = {id: replace(outcome, id=id, sentence=f"VALIDATED: {id}") for id in STATED}
    made = decision(rule, alone)

    (line,) = decision_problems(rule, alone, None, replace(made, sentence="lag; clip"))
    assert line == "the experiment is VALIDATED, and its sentence leaves out criterion drop"
    for outcomes in ({"lag": alone["lag"]}, alone | {"more": alone["lag"]}):
        (line,) = decision_problems(rule, alone, None, replace(made, outcomes=outcomes))
        assert "others are registered" in line


def test_episodes_have_the_mean_or_the_best_of_their_draws():
    """An item counts once; the best of k is the mean over all choices of k draws."""
    drawn = {"a": [0.1, 0.5, 0.3], "b": [0.0, 0.0, 0.6]}
    rows = [
        {"item_id": item, "draw": draw, "scores": {"f4": value}}
        for item, values in drawn.items()
        for draw, value in enumerate(values)
    ]

    assert rows_mean(rows, "f4") == pytest.approx((0.3 + 0.2) / 2)
    best = [(0.5 + 0.3 + 0.5) / 3, (0.0 + 0.6 + 0.6) / 3]
    assert rows_mean(rows, "f4_best_of_2") == pytest.approx(sum(best) / 2)
    for metric in ("f4", "f4_best_of_2", "f4_best_of_3"):
        scores = item_scores(rows, metric)
        assert rows_mean(rows, metric) == pytest.approx(sum(scores.values()) / len(scores))
