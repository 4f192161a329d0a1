"""Scores are joined on item ids, and whatever can't be joined is a problem."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.decisions import paired_scores

FIELD_CASES = json.loads((Path(__file__).parents[1] / "field_cases.json").read_text())


def _given(id: str) -> dict[str, Any]:
    return next(case["input"] for case in FIELD_CASES if case["id"] == id)


def test_join_follows_the_registered_order() -> None:
    """Vectors come in the order of the registered ids, whatever the order of the rows."""
    joined = paired_scores({"t": {"b": 0.0, "a": 1.0}, "u": [("a", 0.25), ("b", 1)]}, ["a", "b"])
    assert joined.problems == ()
    assert joined.item_ids == ("a", "b")
    assert joined.scores["t"].tolist() == [1.0, 0.0]
    assert joined.scores["u"].tolist() == [0.25, 1.0]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"a": 1}, "arm t: 1 of 2 items without a score"),
        ({"a": 1, "b": None}, "arm t: 1 of 2 items without a score"),
        ({"a": 1, "b": 1, "c": 1}, "arm t: 1 of 2 items scored but not registered (c)"),
        ([("a", 1), ("b", 1), ("a", 0)], "arm t: 1 of 2 items scored more than once"),
        ([1.0, 0.0], "arm t: scores come without item ids"),
        ({"a": 1, "b": float("nan")}, "not a finite number in [0, 1] (b), e.g. nan"),
        ({"a": 1, "b": 1.0001}, "not a finite number in [0, 1] (b), e.g. 1.0001"),
        ({"a": 1, "b": "1"}, "not a finite number in [0, 1] (b), e.g. '1'"),
    ],
)
def test_what_can_not_be_joined_is_a_problem(rows: Any, problem: str) -> None:
    """One line names arm, count and the first ids, and no vector is handed out."""
    joined = paired_scores(
        {"t": rows, "u": {"a": 1, "b": 0}}, ["a", "b"], {"t": (0, 1), "u": (0, 1)}
    )
    (line,) = joined.problems
    assert problem in line
    assert joined.scores == {}


def test_registered_ids_must_be_unique_and_present() -> None:
    """Ids that are registered twice, or none at all, are problems of the registration."""
    assert (
        "1 of 3 items registered more than once (a)"
        in paired_scores({"t": {"a": 1, "b": 1}}, ["a", "b", "a"]).problems
    )
    assert "no item is registered" in paired_scores({"t": {}}, []).problems[0]


def test_last_batch_that_was_dropped_is_noticed() -> None:
    """Five full batches of 256 are not the 1,319 items: 39 have no score."""
    given = _given("E11")
    ids = [f"item-{i}" for i in range(given["n"])]
    full = given["n"] // given["batch"] * given["batch"]
    joined = paired_scores({"t": dict.fromkeys(ids[:full], 1.0)}, ids)
    assert "39 of 1319 items without a score" in joined.problems[0]


def test_padding_rows_are_noticed() -> None:
    """Items that distributed padding scored a second time are duplicates, not more data."""
    given = _given("E12")
    ids = [f"item-{i}" for i in range(given["n"])]
    padded = [*ids, *ids[: -given["n"] % given["batch"]]]
    joined = paired_scores({"t": [(item, 1.0) for item in padded]}, ids)
    assert "7 of 25 items scored more than once" in joined.problems[0]


def test_samples_of_an_item_are_not_items() -> None:
    """K rows per item are refused with the advice to average an item first."""
    rows = [(item, float(k % 2)) for item in ("a", "b") for k in range(4)]
    joined = paired_scores({"t": rows}, ["a", "b"])
    assert "average an item first" in joined.problems[0]
