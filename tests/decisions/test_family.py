"""Several criteria to one verdict: what each is left to say, and in which words."""

from dataclasses import replace

import pytest
from families import LETTERS, NEXT, outcome_of, rule_of

from harness.decisions import CombineRule, Verdict, decision
from harness.errors import CardError

HOLM_REFUTED = "all_must_pass_holm_refuted"
WORDS = {"V": "VALIDATED", "R": "REFUTED", "I": "INCONCLUSIVE", "X": "INVALID"}


def decided(combine, claims, premises=""):
    """The decision on one look, from a letter for each claim and each premise."""
    letters = {f"p{i}": letter for i, letter in enumerate(premises)}
    steps = dict.fromkeys(letters, NEXT)
    letters |= {f"c{i}": letter for i, letter in enumerate(claims)}
    rule = rule_of(combine, [id for id in letters if id not in steps], steps, second_look=False)
    return decision(rule, {id: outcome_of(id, LETTERS[letter]) for id, letter in letters.items()})


@pytest.mark.parametrize(
    ("letters", "all_must", "any_may"),
    [
        ("V", "VALIDATED", "VALIDATED"),
        ("VV", "VALIDATED", "VALIDATED"),
        ("VI", "INCONCLUSIVE", "VALIDATED"),
        ("VR", "REFUTED", "VALIDATED"),
        ("IR", "REFUTED", "INCONCLUSIVE"),
        ("RR", "REFUTED", "REFUTED"),
        ("II", "INCONCLUSIVE", "INCONCLUSIVE"),
        ("VX", "INVALID", "INVALID"),
        ("RX", "INVALID", "INVALID"),
    ],
)
def test_combination(letters, all_must, any_may):
    """INVALID over REFUTED over INCONCLUSIVE over VALIDATED; any-may-pass needs one survivor."""
    assert decided("all_must_pass", letters).verdict == all_must
    assert decided("any_may_pass", letters).verdict == any_may


def test_holm_stands_between_one_of_many_and_a_pass():
    """A criterion that passes at alpha but not at alpha/3 does not carry two that say nothing."""
    assert decided("any_may_pass", "v").verdict is Verdict.VALIDATED
    made = decided("any_may_pass", "vII")
    assert made.verdict is Verdict.INCONCLUSIVE
    assert "VALIDATED, but not after Holm over 3 criteria" in made.outcomes["c0"].sentence


def test_refutation_among_many_may_need_holm():
    """Under the stricter rule a refutation counts only if it survives Holm over the criteria."""
    assert decided("all_must_pass", "rVV").verdict is Verdict.REFUTED
    assert decided(HOLM_REFUTED, "rVV").verdict is Verdict.INCONCLUSIVE
    assert decided(HOLM_REFUTED, "RVV").verdict is Verdict.REFUTED
    assert decided(HOLM_REFUTED, "VV").verdict is Verdict.VALIDATED


def test_refused_combinations():
    """Premises alone claim nothing, and Holm can't share two alphas."""
    rule = rule_of("any_may_pass", ["c0", "c1"], {}, second_look=False)
    alone = {id: outcome_of(id, LETTERS["V"]) for id in ("c0", "c1")}
    with pytest.raises(CardError, match="one alpha"):
        decision(rule, alone | {"c1": replace(alone["c1"], alpha=0.01)})
    premises = [c.model_copy(update={"premise": True}) for c in rule.criteria]
    with pytest.raises(CardError, match="nothing is claimed"):
        decision(rule.model_copy(update={"criteria": premises}), alone)


@pytest.mark.parametrize("combine", CombineRule)
@pytest.mark.parametrize(
    ("letters", "expected"),
    [("VV", "VV"), ("VR", "VR"), ("RV", "II"), ("RR", "II"), ("IV", "II"), ("XR", "XI")],
)
def test_premise_that_is_not_shown_makes_the_comparison_not_count(combine, letters, expected):
    """The first is a premise: without it nothing is validated or refuted, and it never refutes."""
    premise, claim = letters
    made = decided(combine, claim, premise)

    said = [str(outcome.verdict) for outcome in made.outcomes.values()]
    assert said == [WORDS[letter] for letter in expected]
    for outcome in made.outcomes.values():
        assert outcome.sentence.endswith(f"Next step: {NEXT}.") is outcome.inconclusive


@pytest.mark.parametrize(
    ("combine", "letters", "sentence"),
    [
        ("all_must_pass", "VV", "c0 at 0.02; c1 at 0.02"),
        ("all_must_pass", "RV", "c0 at 0.02"),
        ("all_must_pass", "VI", "c1 at 0.02"),
        ("any_may_pass", "IV", "c1 at 0.02"),
        ("all_must_pass", "RX", "c1 at 0.02"),
    ],
)
def test_the_sentence_is_that_of_the_criteria_that_make_the_verdict(combine, letters, sentence):
    """In the rule's order, without the word, which stands in front of the whole."""
    assert decided(combine, letters).sentence == sentence
