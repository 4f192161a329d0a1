from pathlib import Path

import pytest

from harness.audit.scored import policy_problems, row_problems
from harness.cards import load_experiment
from harness.tasks.gsm8k import Problem
from harness.tasks.sec_search import Fact, Query

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
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


QUERY = Query("7_2", "Which?", "x", tuple(Fact(f"fact {i}", (f"c{i}",), False) for i in range(3)))
SCORES = {
    "precision": 0.5, "recall": 2 / 3, "curated": 4.0, "empty": 0.0, "turns": 3.0,
    "stop=tool_stopped": 1.0, "stop=max_tokens": 0.0, "stop=parse_error": 0.0,
}  # fmt: skip
SCORES |= dict.fromkeys(("f4", "reward"), 17 * 0.5 * (2 / 3) / (16 * 0.5 + 2 / 3))
NOTHING = {"precision": 0.0, "recall": 0.0, "f4": 0.0, "curated": 0.0, "empty": 1.0}
DRAW = {
    "item_id": "7_2", "draw": 1, "stop": "tool_stopped", "n_tokens": 17, "scores": SCORES,
    "curated": ["c0", "x", "c2", "y"],
}  # fmt: skip


@pytest.fixture(scope="module", name="search")
def _search():
    """The registration of the search experiment at its embedded scale."""
    return load_experiment(CARDS / "tailrl_lag8_sec_search_4b.json", "embedded").registration


@pytest.mark.parametrize(
    "changed", [{}, {"curated": [], "scores": SCORES | NOTHING | {"reward": -0.2}}]
)
def test_an_episode_that_adds_up_is_let_through(search, changed):
    """F4 of the curated set's precision and recall is the reward, and an empty set is paid -0.2."""
    assert row_problems("base", [DRAW | changed], [QUERY], search) == []


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"f4": 0.6, "reward": 0.6}, "has F4 0.6, precision 0.5 and recall 0.666667 make 0.653846"),
        ({"reward": 0.7}, "chunks of F4 0.653846 are paid 0.653846"),
        ({"empty": 1.0}, "and empty 1"),
        ({"curated": 3.0}, "has 3 curated chunks, 4 are stored, 30 at most"),
        ({"precision": 0.75}, "has precision 0.75, its curated set makes 0.5"),
        ({"recall": 1.0}, "has recall 1, its curated set makes 0.666667"),
        ({"turns": 7.0}, "has 7 turns, 1 to 6 are registered"),
        ({"turns": 1.0}, "has 17 tokens in 1 turns, max_tokens is 16"),
        ({"stop=max_tokens": 1.0}, "ended by tool_stopped, its figures say"),
    ],
)
def test_an_episode_that_contradicts_itself_is_named(search, scores, words):
    """Another measure, a paid silence, shares that no set has, another cut."""
    (line,) = row_problems("base", [DRAW | {"scores": SCORES | scores}], [QUERY], search)
    assert words in line


@pytest.mark.parametrize(
    ("curated", "words"),
    [
        ([], "has 4 curated chunks, 0 are stored"),
        (["c0", "c0", "x", "y"], "has 4 curated chunks, 4 are stored"),
        (["c0", "c1", "c2", "y"], "has precision 0.5, its curated set makes 0.75"),
        (["x", "c2", "y", "c0"], None),
    ],
)
def test_an_episode_that_curated_something_else_is_named(search, curated, words):
    """The set is graded again against the question's facts; its order is of no account."""
    found = row_problems("base", [DRAW | {"curated": curated}], [QUERY], search)

    assert len(found) == (words is not None)
    assert all(words in line for line in found)


def test_a_paid_silence_is_named(search):
    """Nothing curated costs 0.2."""
    scores = SCORES | NOTHING | {"reward": 0.0}

    (line,) = row_problems("base", [DRAW | {"scores": scores, "curated": []}], [QUERY], search)
    assert "has the reward 0, 0 chunks of F4 0 are paid -0.2" in line


def test_a_broken_reply_is_paid_the_floor_where_that_is_registered(search):
    """Whatever was curated; a graded one is not."""
    floor = search.model_copy(
        update={"search": search.search.model_copy(update={"broken_reply": "floor"})}
    )
    ended = {"stop=tool_stopped": 0.0, "stop=parse_error": 1.0}
    row = DRAW | {"stop": "parse_error", "scores": SCORES | ended}

    assert row_problems("base", [row], [QUERY], search) == []
    (line,) = row_problems("base", [row], [QUERY], floor)
    assert "are paid -0.2" in line


def test_rows_of_another_task_and_of_more_draws_are_named(search):
    """A reply where an episode is registered is no row of it."""
    (line,) = row_problems("base", [ROW | {"item_id": "7_2"}], [QUERY], search)
    assert "has a row of another task" in line
    (line,) = row_problems("base", [DRAW | {"draw": 2}], [QUERY], search)
    assert "has draw 2, 2 are registered" in line


@pytest.mark.parametrize(
    ("scored", "words"),
    [
        ([-1.0, -2.0], None),
        ([-1.0, -2.01], "differ by 0.01 from the trained ones'"),
        ([-1.0], "are 1, 2 of the trained weights"),
        (None, "nothing tells the evaluated weights from others"),
    ],
)
def test_other_weights_than_the_trained_ones_are_named(scored, words):
    """Fingerprints tell weights apart; where one was not noted, that is said."""
    found = policy_problems("gs1_seed0", {"fingerprint": [-1.0, -2.0]}, {"fingerprint": scored})

    assert len(found) == (words is not None)
    assert all(words in line for line in found)
