"""Premises x combine rules x verdicts x looks: every cell, against the rules' own words.

Three computations meet in each cell: `decision`, the oracle that reads its docstrings, and the
check that works the decision out again after a run.
"""

import itertools
from dataclasses import replace

import pytest
from families import LETTERS, NEXT, Said, calls, documented, outcome_of, rule_of
from hypothesis import given
from hypothesis import strategies as st

from harness.audit.decided import decision_problems
from harness.decisions import CombineRule, Verdict, calls_for_second_look, decision

PREMISES = (None, "V", "R", "I", "X")
PAIRS = ["".join(pair) for pair in itertools.product(LETTERS, repeat=2)]
NEAR, FAR = 0.02, 0.3


def looks_of(premises, claims, estimate):
    """The outcomes of each look, by id, from what each criterion says on each."""
    criteria = {f"p{i}": says for i, says in enumerate(premises)}
    criteria |= {f"c{i}": says for i, says in enumerate(claims)}
    looks = zip(*criteria.values(), strict=True)
    return [
        {
            id: outcome_of(id, said, estimate + 0.01 * look)
            for id, said in zip(criteria, says, strict=True)
        }
        for look, says in enumerate(looks)
    ]


def holds_to(combine, premises, claims, estimate=NEAR, second_look=True):
    """Decide one cell, and hold it to the oracle and to the check."""
    ids = [f"c{i}" for i in range(len(claims))]
    rule = rule_of(combine, ids, {f"p{i}": NEXT for i in range(len(premises))}, second_look)
    looks = looks_of(premises, claims, estimate)
    first, second = looks if len(looks) > 1 else (*looks, None)
    made = decision(rule, first, second)
    cell = (combine, premises, claims)

    assert made.verdict is documented(combine, premises, claims), cell
    assert list(made.outcomes) == [criterion.id for criterion in rule.criteria]
    called = second_look and calls(combine, premises, claims, estimate == NEAR)
    assert calls_for_second_look(rule, first) is called, cell
    if called is not (second is not None):
        (line,) = decision_problems(rule, first, second, made)
        assert line == f"decided on {len(looks)} look(s), the first calls for {1 + called}"
        return
    assert decision_problems(rule, first, second, made) == [], cell
    for other in set(Verdict) - {made.verdict} if second is None else ():
        lines = decision_problems(rule, first, second, replace(made, verdict=other))
        assert lines == [f"the experiment is {other}, its criteria make it {made.verdict}"]


@pytest.mark.parametrize("estimate", [NEAR, FAR], ids=["near", "far"])
@pytest.mark.parametrize("premise", PREMISES)
@pytest.mark.parametrize("combine", CombineRule)
def test_one_look(combine, premise, estimate):
    """For all verdicts of two claims the decision is what the rule's docstring says it is."""
    premises = [] if premise is None else [[LETTERS[premise]]]
    for pair in PAIRS:
        claims = [[LETTERS[letter]] for letter in pair]
        for second_look in (False, True):
            holds_to(combine, premises, claims, estimate, second_look)


@pytest.mark.parametrize("again", [pair for pair in PAIRS if "v" not in pair and "r" not in pair])
@pytest.mark.parametrize("premise", [None, "VV", "VR", "VI", "VX", "IV"])
@pytest.mark.parametrize("combine", CombineRule)
def test_two_looks(combine, premise, again):
    """The experiment says what both looks let it say; a look that was not called for is named."""
    premises = [] if premise is None else [[LETTERS[letter] for letter in premise]]
    for first in PAIRS:
        claims = [[LETTERS[one], LETTERS[two]] for one, two in zip(first, again, strict=True)]
        holds_to(combine, premises, claims)


WORDS = st.sampled_from(Verdict)
# none of them at one of Holm's bounds for up to four claims
P_VALUES = st.sampled_from([None, 0.0, 0.004, 0.0124, 0.013, 0.02, 0.03, 0.2, 1.0])
SAID = st.builds(Said, WORDS, P_VALUES, P_VALUES)


@given(
    combine=st.sampled_from(CombineRule),
    n_looks=st.integers(1, 2),
    data=st.data(),
)
def test_any_family(combine, n_looks, data):
    """Up to four claims behind up to two premises, whatever they say and however surely."""
    says = st.lists(SAID, min_size=n_looks, max_size=n_looks)
    premises = data.draw(st.lists(says, max_size=2))
    claims = data.draw(st.lists(says, min_size=1, max_size=4))
    holds_to(combine, premises, claims, data.draw(st.sampled_from([NEAR, FAR])))


def test_a_premise_is_no_claim():
    """Where any may pass, a premise that holds does not carry a claim that says nothing."""
    rule = rule_of("any_may_pass", ["c0"], {"p0": None}, second_look=False)
    alone = {"p0": outcome_of("p0", LETTERS["V"]), "c0": outcome_of("c0", LETTERS["I"])}

    made = decision(rule, alone)

    assert made.verdict is Verdict.INCONCLUSIVE
    assert made.sentence == "c0 at 0.02"
