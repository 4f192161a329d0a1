"""Train and test questions: no family, gold chunk or text on both sides."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DataError
from harness.tasks.sec_search import Fact, Query
from harness.tasks.sec_search.splits import QUOTAS, Splits, choose_splits, leakage


def query(query_id: str, *chunks: str, text: str | None = None) -> Query:
    """A question with one fact for each chunk."""
    shown = tuple(Fact(chunk, (chunk,), False) for chunk in chunks)
    return Query(query_id, text or f"text of {query_id}", "", shown)


def variants(family: int) -> list[Query]:
    """The 3-, 5- and 7-fact forms of a family, which share gold chunks."""
    chunks = [f"{family}-{n}" for n in range(7)]
    return [query(f"{family}_{level}", *chunks[: 3 + 2 * level]) for level in range(3)]


QUERIES = [each for family in range(200) for each in variants(family)]


def test_quotas_and_one_variant_a_family():
    """Sides have the asked sizes, the quotas of fact counts, and no family twice."""
    splits = choose_splits(QUERIES, 96, 32, seed=42)
    for side in (splits.train, splits.test):
        counts = Counter(len(each.facts) for each in side)
        assert counts == {facts: share * len(side) for facts, share in QUOTAS.items()}
    families = [each.family for each in (*splits.train, *splits.test)]
    assert len(set(families)) == len(families) == 128


def test_the_order_of_records_does_not_matter_and_the_seed_does():
    """Selection follows from the seed and the records, not from where they stand in a file."""
    splits = choose_splits(QUERIES, 20, 8, seed=42)
    assert choose_splits(QUERIES[::-1], 20, 8, seed=42) == splits
    assert choose_splits(QUERIES, 20, 8, seed=43) != splits


def test_shortfalls_are_filled_from_other_fact_counts():
    """Without 7-fact questions their share goes to the others."""
    short = [each for each in QUERIES if len(each.facts) < 7]
    assert len(choose_splits(short, 64, 16, seed=1).train) == 64


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=6, max_size=40),
)
def test_nothing_leaks_whatever_is_shared(seed, drawn):
    """Chains of shared families and chunks keep their questions on one side."""
    queries = [query(f"{f}_{n}", f"c{c}", f"d{n}") for n, (f, c) in enumerate(drawn)]
    refusal = ""
    try:
        assert not any(leakage(choose_splits(queries, 2, 2, seed)).values())
    except DataError as error:
        refusal = str(error)
    # too few that can stand beside each other is fine; the guard having had to step in is not
    assert not refusal or "can be chosen" in refusal


def test_a_repeated_text_is_tied_like_a_shared_chunk():
    """Two families that ask the same in other spacing and case stay on one side."""
    same = [query("1_0", "a", text="Who  is it?"), query("2_0", "b", text="who is IT?")]
    with pytest.raises(DataError, match="0 train questions can be chosen from 2, 1 are needed"):
        choose_splits(same, 1, 1, seed=0)


def test_leakage_counts_what_is_on_both_sides():
    """The guard sees a planted leak of each kind."""
    one, other = query("1_0", "a", text="x"), query("1_1", "a", "b", text="X")
    assert leakage(Splits((one,), (other,))) == {"families": 1, "gold_chunks": 1, "texts": 1}
