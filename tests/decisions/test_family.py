"""Several criteria to one verdict."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from harness.decisions import CombineRule, Criterion, Outcome, Verdict, combine, decide, settled
from harness.errors import CardError

Registered = Callable[..., Criterion]
Table = Callable[[int, int, int, int], tuple[Any, list[str]]]
CELLS = {"V": (50, 60, 0, 50), "R": (50, 0, 60, 50), "I": (50, 12, 10, 50)}


@pytest.fixture
def outcomes(registered: Registered, table: Table) -> Callable[[str], list[Outcome]]:
    """Decide one criterion per letter: V, R, I, or X for data that are missing."""

    def build(letters: str) -> list[Outcome]:
        found = []
        for letter in letters:
            scores, ids = table(*CELLS.get(letter, CELLS["V"]))
            found.append(decide(registered(margin=0), scores, ids + ["?"] * (letter == "X")))
        return found

    return build


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
def test_combination(
    outcomes: Callable[[str], list[Outcome]], letters: str, all_must: str, any_may: str
) -> None:
    """INVALID over REFUTED over INCONCLUSIVE over VALIDATED; any-may-pass needs one survivor."""
    assert combine(outcomes(letters)) == all_must
    assert combine(outcomes(letters), CombineRule.ANY_MAY_PASS) == any_may


def test_holm_stands_between_one_of_many_and_a_pass(
    outcomes: Callable[[str], list[Outcome]],
) -> None:
    """A criterion that passes at alpha but not at alpha/3 does not carry two that say nothing."""
    weak, *rest = outcomes("VII")
    weak = dataclasses.replace(weak, p_validated=0.03)
    assert weak.validated
    assert combine([weak], CombineRule.ANY_MAY_PASS) is Verdict.VALIDATED
    assert combine([weak, *rest], CombineRule.ANY_MAY_PASS) is Verdict.INCONCLUSIVE


def test_refutation_among_many_may_need_holm(outcomes: Callable[[str], list[Outcome]]) -> None:
    """Under the stricter rule a refutation counts only if it survives Holm over the criteria."""
    weak, *rest = outcomes("RVV")
    weak = dataclasses.replace(weak, p_refuted=0.03)
    assert combine([weak, *rest]) is Verdict.REFUTED
    strict = CombineRule.ALL_MUST_PASS_HOLM_REFUTED
    assert combine([weak, *rest], strict) is Verdict.INCONCLUSIVE
    assert combine(outcomes("RVV"), strict) is Verdict.REFUTED
    assert combine(outcomes("VV"), strict) is Verdict.VALIDATED


def test_refused_combinations(outcomes: Callable[[str], list[Outcome]]) -> None:
    """Nothing combines to nothing, and Holm can't share two alphas."""
    with pytest.raises(CardError, match="no criterion"):
        combine([])
    one, two = outcomes("VI")
    with pytest.raises(CardError, match="one alpha"):
        combine([one, dataclasses.replace(two, alpha=0.01)], CombineRule.ANY_MAY_PASS)


@pytest.mark.parametrize("rule", CombineRule)
@pytest.mark.parametrize("letters", [a + b + c for a in "VRI" for b in "VRI" for c in "VRI"])
def test_settled_outcomes_say_what_their_family_says(outcomes, rule, letters):
    """Each outcome as it stands among the others combines to the verdict of the raw ones."""
    raw = outcomes(letters)
    stand = settled({str(i): o for i, o in enumerate(raw)}, (), rule)
    words = {outcome.verdict for outcome in stand.values()}

    together = combine(raw, rule)
    if rule is CombineRule.ANY_MAY_PASS and Verdict.VALIDATED in words:
        assert together is Verdict.VALIDATED
        assert Verdict.REFUTED not in words
    else:
        assert combine(list(stand.values()), CombineRule.ALL_MUST_PASS) is together


@pytest.mark.parametrize(
    ("letters", "expected"),
    [("VV", "VV"), ("RV", "RV"), ("VR", "II"), ("RR", "II"), ("VI", "II"), ("RX", "IX")],
)
def test_premise_that_is_not_shown_makes_the_comparison_not_count(outcomes, letters, expected):
    """The second is a premise: without it nothing is validated or refuted, and it never refutes."""
    stand = settled(
        {str(i): o for i, o in enumerate(outcomes(letters))}, {"1"}, CombineRule.ALL_MUST_PASS
    )
    words = {"V": "VALIDATED", "R": "REFUTED", "I": "INCONCLUSIVE", "X": "INVALID"}

    assert [str(o.verdict) for o in stand.values()] == [words[letter] for letter in expected]
