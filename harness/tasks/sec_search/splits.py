"""Choosing train and test questions so that neither can be learned from the other.

Questions that share a family, a gold chunk or their text are tied together, transitively. A tied
set gives its questions to one side only, and each family gives one variant at most.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import DataError
from harness.tasks.sec_search.records import Query

# shares of questions by their number of facts, of the sec_1024 selection
QUOTAS: Mapping[int, float] = {3: 0.5, 5: 0.3125, 7: 0.1875}


@dataclass(frozen=True)
class Splits:
    """The chosen questions. Train and test share no family, no gold chunk and no text."""

    train: tuple[Query, ...]
    test: tuple[Query, ...]


def choose_splits(
    queries: Sequence[Query],
    n_train: int,
    n_test: int,
    seed: int,
    quotas: Mapping[int, float] = QUOTAS,
) -> Splits:
    """Pick test first, then train, by number of facts as `quotas` say; shortfalls are filled up.

    The order is that of a keyed hash of the id, the text breaking ties, so neither the order of
    the records nor other records change who comes first.

    Raises:
        DataError: there are too few questions that can stand beside each other.
    """
    ordered = sorted(queries, key=lambda query: (_rank(seed, query.id), query.text))
    tie = _tied_sets(ordered)
    side_of: dict[int, str] = {}
    used: set[str] = set()
    picked: dict[str, tuple[Query, ...]] = {}
    for side, count in (("test", n_test), ("train", n_train)):
        picked[side] = _pick(side, count, ordered, tie, quotas, side_of, used)
        if len(picked[side]) < count:
            raise DataError(
                f"{len(picked[side])} {side} questions can be chosen from {len(queries)}, {count} "
                "are needed with one per family and no shared gold chunk; give more questions"
            )
    splits = Splits(picked["train"], picked["test"])
    leaks = leakage(splits)
    if any(leaks.values()):
        raise DataError(f"train and test share {leaks}; the choice of questions is broken")
    return splits


def leakage(splits: Splits) -> dict[str, int]:
    """How many families, gold chunks and normalized texts are on both sides; all 0 if sound."""

    def shared(of_train: set[str], of_test: set[str]) -> int:
        return len(of_train & of_test)

    train, test = splits.train, splits.test
    return {
        "families": shared({q.family for q in train}, {q.family for q in test}),
        "gold_chunks": shared(
            {c for q in train for c in q.gold}, {c for q in test for c in q.gold}
        ),
        "texts": shared({q.normalized_text for q in train}, {q.normalized_text for q in test}),
    }


def _pick(
    side: str,
    count: int,
    ordered: Sequence[Query],
    tie: Mapping[int, int],
    quotas: Mapping[int, float],
    side_of: dict[int, str],
    used: set[str],
) -> tuple[Query, ...]:
    """Up to `count` questions in hash order: by quota first, then whatever is left."""
    room = Counter({facts: int(share * count) for facts, share in quotas.items()})
    chosen: dict[int, Query] = {}
    for by_quota in (True, False):
        for index, query in enumerate(ordered):
            if len(chosen) == count:
                break
            free = side_of.get(tie[index], side) == side and query.family not in used
            if free and (not by_quota or room[len(query.facts)] > 0):
                room[len(query.facts)] -= 1
                side_of[tie[index]] = side
                used.add(query.family)
                chosen[index] = query
    return tuple(chosen[index] for index in sorted(chosen))


def _tied_sets(queries: Sequence[Query]) -> dict[int, int]:
    """The number of each question's tied set, by union of all that share a key."""
    parent = list(range(len(queries)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, str], int] = {}
    for index, query in enumerate(queries):
        keys = [("family", query.family), ("text", query.normalized_text)]
        for key in [*keys, *(("chunk", chunk) for chunk in query.gold)]:
            parent[root(index)] = root(first.setdefault(key, index))
    return {index: root(index) for index in range(len(queries))}


def _rank(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
