import pytest

from harness.checks.scored import policy_problems, row_problems
from harness.tasks.gsm8k import Problem

ITEM = Problem("test/00001", "How many?", "It is 12.\n#### 12", "12")
ROW = {
    "item_id": "test/00001",
    "correct": True,
    "answer": "12",
    "gold": "12",
    "response": "So it is \\boxed{12}",
    "n_tokens": 9,
    "stop": "stop",
}


def test_a_row_that_follows_from_its_item_is_let_through(experiment):
    """Gold, grade and length are what item, response and rule make them."""
    assert row_problems("base", [ROW], [ITEM], experiment.registration) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"response": "12 pens and 3 more: 15"}, "is marked True with the answer 15 for gold 12"),
        ({"correct": False}, "is marked False with the answer 12 for gold 12"),
        ({"gold": "13"}, "has the gold answer 13, the data say 12"),
        ({"stop": "length"}, "ended by length after 9 tokens, max_tokens is 64"),
        ({"n_tokens": 65}, "ended by stop after 65 tokens, max_tokens is 64"),
    ],
)
def test_a_row_that_contradicts_its_item_is_named(experiment, change, words):
    """A lenient grade, another item's gold, another cut."""
    evaluation = experiment.registration.evaluation.model_copy(update={"max_tokens": 64})
    registration = experiment.registration.model_copy(update={"evaluation": evaluation})

    (line,) = row_problems("base", [ROW | change], [ITEM], registration)
    assert words in line


@pytest.mark.parametrize(
    ("scored", "words"),
    [
        ([-1.0, -2.0], None),
        ([-1.0, -2.01], "differ by 0.01 from the trained ones'"),
        ([-1.0], "are 1, 2 of the trained weights"),
        (None, None),
    ],
)
def test_other_weights_than_the_trained_ones_are_named(scored, words):
    """Prints tell weights apart; where one was not noted, nothing is said."""
    found = policy_problems("gs1_seed0", {"print": [-1.0, -2.0]}, {"print": scored})

    assert len(found) == (words is not None)
    assert all(words in line for line in found)
