"""What a curated set is worth: F-beta over facts and chunks, and -0.2 for an empty set."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.errors import DataError, StatisticsError
from harness.tasks.sec_search.records import Fact

BETA = 4.0
EMPTY_REWARD = -0.2


@dataclass(frozen=True)
class Score:
    """Precision over chunks, recall over facts and their F-beta, each in [0, 1], 0 if empty."""

    precision: float
    recall: float
    f_beta: float
    curated: int

    @property
    def reward(self) -> float:
        """F-beta of the curated set, or -0.2 if nothing was curated."""
        return self.f_beta if self.curated else EMPTY_REWARD


def f_beta(precision: float, recall: float, beta: float = BETA) -> float:
    """(1 + b^2) P R / (b^2 P + R), and 0 where both are 0; 17 P R / (16 P + R) at b = 4.

    Raises:
        StatisticsError: precision or recall is outside [0, 1], or beta is not positive.
    """
    if not (0.0 <= precision <= 1.0 and 0.0 <= recall <= 1.0 and 0.0 < beta < math.inf):
        raise StatisticsError(
            f"precision {precision}, recall {recall}, beta {beta}; the first two lie in [0, 1] "
            "and beta is positive"
        )
    weighted = beta * beta * precision + recall
    return (1.0 + beta * beta) * precision * recall / weighted if weighted > 0.0 else 0.0


def score(curated: Iterable[str], facts: Sequence[Fact], beta: float = BETA) -> Score:
    """Score a set of chunk ids: |S & U| / |S| and the share of facts with a chunk in S.

    U is the union of all facts' chunks. Repeated ids count once.

    Raises:
        DataError: there is no fact, or a fact without chunks.
    """
    if not facts or not all(fact.chunk_ids for fact in facts):
        raise DataError(f"{len(facts)} facts, each with a chunk at least, can be scored; fix them")
    chosen = frozenset(curated)
    if not chosen:
        return Score(0.0, 0.0, 0.0, 0)
    gold = frozenset(chunk for fact in facts for chunk in fact.chunk_ids)
    precision = len(chosen & gold) / len(chosen)
    recall = sum(not chosen.isdisjoint(fact.chunk_ids) for fact in facts) / len(facts)
    return Score(precision, recall, f_beta(precision, recall, beta), len(chosen))
