"""Evaluations that make no sense are told by name, and honest ones are left alone."""

import pytest

from harness.audit.second_reading import reads_as
from harness.audit.sense import Policy, doubts, settled

N = 400


def policy(name, right, *, stop="stop", answer=None, shift=0):
    """A policy whose share `right` of the items is right, spread over all of them."""
    rows = []
    for i in range(N):
        gold = str(100 + i)
        correct = ((i + shift) * 617) % N < right * N
        said = (gold if correct else str(i)) if answer is None else answer(i, gold)
        rows.append(
            {
                "item_id": f"test/{i}", "correct": said == gold, "answer": said, "gold": gold,
                "response": f"I say {said}", "n_tokens": 9, "stop": stop,
            }
        )  # fmt: skip
    return Policy(name, rows, {row["item_id"]: float(row["correct"]) for row in rows})


def pilot(right, prompts=64):
    """The first steps of an arm, sampled from the base model, as far as they are looked at."""
    correct = [float((i * 37) % prompts < right * prompts) for i in range(prompts)]
    groups = [
        {"prompt": i, "rollouts": [{"scores": {"correct": x}}]} for i, x in enumerate(correct)
    ]
    return {"gs1_seed0": [{"step": 0, "groups": groups}]}


def said(experiment, base, treatment, baseline, steps=None):
    """The doubts about two arms and a base model, by check and what they are about."""
    arms = [
        Policy("grpo_gs8_seed0", baseline.rows, baseline.scores),
        Policy("gs1_seed0", treatment.rows, treatment.scores),
    ]
    found = doubts(experiment, Policy("base", base.rows, base.scores), arms, steps or pilot(0.6))
    return {(d.check, str(d.given_for.get("arm", d.given_for.get("policy", "")))): d for d in found}


GOOD, BASE = policy("a", 0.9), policy("b", 0.65)


def test_an_honest_experiment_is_in_no_doubt(experiment):
    """Base 65%, arms 90%, the pilot near the base model."""
    assert said(experiment, BASE, GOOD, policy("c", 0.88, shift=3)) == {}


@pytest.mark.parametrize(
    ("treatment", "baseline", "expected"),
    [
        (policy("t", 0.014), policy("b", 0.0),
         {("below_base", "gs1_seed0"), ("below_base", "grpo_gs8_seed0")}),
        (policy("t", 0.4), GOOD, {("below_base", "gs1_seed0")}),
        (BASE, BASE, {("not_learned", "gs1_seed0"), ("not_learned", "grpo_gs8_seed0")}),
        (policy("t", 0.66), GOOD, {("not_learned", "gs1_seed0")}),
        (policy("t", 0.9, stop="length"), GOOD, {("cut", "gs1_seed0")}),
        (policy("t", 0, answer=lambda _i, _g: "1"), GOOD,
         {("one_answer", "gs1_seed0"), ("below_base", "gs1_seed0")}),
        (policy("t", 0, answer=lambda i, g: g if i % 3 == 0 else None), GOOD,
         {("unanswered", "gs1_seed0"), ("below_base", "gs1_seed0")}),
    ],
    ids=["two_ruins", "one_ruin", "nothing_learned", "one_learned", "cut", "collapsed", "silent"],
)  # fmt: skip
def test_a_broken_evaluation_is_named(experiment, treatment, baseline, expected):
    """The check and the arm, with value, bound and cure in one line."""
    found = said(experiment, BASE, treatment, baseline)

    assert set(found) == expected
    for doubt in found.values():
        assert "\n" not in doubt.line
        assert "bound" in doubt.line


def test_a_grader_that_is_wrong_is_seen_by_the_second_reader(experiment):
    """Responses graded right though they say another number, more than one in twenty."""
    wrong = [{**row, "correct": True} if i % 4 == 1 else row for i, row in enumerate(BASE.rows)]
    few = [{**row, "correct": True} if i % 30 == 5 else row for i, row in enumerate(BASE.rows)]

    found = said(experiment, BASE, Policy("t", wrong, GOOD.scores), GOOD)

    assert set(found) == {("read_otherwise", "gs1_seed0")}
    assert "graded otherwise by a second reader" in found["read_otherwise", "gs1_seed0"].line
    assert said(experiment, BASE, Policy("t", few, GOOD.scores), GOOD) == {}


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("3 and 4 make \\boxed{7}. Check: 4 and 3.", "7", True),
        ("\\boxed{1,250}", "1250", True),
        ("so 7\n#### 1,250\nDone in 2 steps.", "1250", True),
        ("The answer is 18.", "18", True),
        ("It costs $12.50!", "12.5", True),
        ("\\boxed{-5}", "5", False),
        ("\\boxed{1/2}", "0.5", True),
        ("I can't tell.", "3", False),
    ],
)
def test_the_second_reader_reads_plain_answers(response, gold, right):
    """By code of its own; what it misreads shows as a disagreement, not as a grade."""
    assert reads_as(response, gold) is right


def test_test_answers_of_other_questions_are_seen(experiment):
    """A base model that solves 60% of the train prompts and nothing of the test items."""
    shifted = policy("b", 0, answer=lambda i, _g: str(100 + (i + 1) % N))

    found = said(experiment, shifted, GOOD, GOOD, pilot(0.6))

    assert ("other_split", "") in found
    assert "belong to other questions" in found["other_split", ""].line
    assert ("other_split", "") not in said(experiment, BASE, GOOD, GOOD, pilot(0.75))


def test_one_answer_that_most_items_ask_for_is_no_collapse(experiment):
    """Where 60% of the items are "7", a policy may say so."""
    rows = [{**row, "gold": "7", "answer": "7", "correct": True} for row in GOOD.rows[:240]]
    sevens = Policy("t", [*rows, *GOOD.rows[240:]], GOOD.scores)

    assert ("one_answer", "gs1_seed0") not in said(experiment, BASE, sevens, GOOD)


def test_a_doubt_is_accepted_with_a_reason_that_the_verdict_repeats(experiment, bend):
    """For that arm and that bound alone."""
    accepted = [
        {
            "preflight": "sense", "outcome": "below_base", "reason": "the collapse is the claim",
            "given_for": {"arm": "gs1_seed0", "below_base_p": 1e-3},
        }
    ]  # fmt: skip
    stated = experiment.registration.model_dump(mode="json")["accepted"]
    other = bend(experiment, registration={"accepted": [*stated, *accepted]})
    ruined = policy("t", 0.01)

    one = settled(other, list(said(other, BASE, ruined, GOOD).values()))
    both = settled(other, list(said(other, BASE, ruined, ruined).values()))

    assert one[0] == []
    assert "(accepted: the collapse is the claim)" in one[1][0]
    (problem,) = both[0]
    assert problem.startswith("arm grpo_gs8_seed0")


def test_a_bound_of_ones_own_is_said(experiment, bend):
    """Whoever loosens a bound finds it beside the verdict."""
    other = bend(experiment, registration={"sense": {"max_cut": 0.9}})

    assert settled(other, []) == ([], ["sense: max_cut is registered as 0.9, by default 0.5"])
