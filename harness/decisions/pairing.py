"""Scores of several arms joined on item ids. A score without its id can't be paired."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from harness.statistics.contrasts import Bounds

# pairs keep duplicates visible, which a mapping has already lost
Rows: TypeAlias = Mapping[str, float | None] | Iterable[tuple[str, float | None]]
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PairedScores:
    """One aligned float64 vector per arm in the order of ``item_ids``, empty if ``problems``."""

    item_ids: tuple[str, ...]
    scores: Mapping[str, NDArray[np.float64]]
    problems: tuple[str, ...]


def paired_scores(
    rows_by_arm: Mapping[str, Rows],
    item_ids: Sequence[str],
    bounds: Mapping[str, Bounds] | None = None,
) -> PairedScores:
    """Join every arm's rows on the registered item ids.

    Problems, all of them together: an item that is registered or scored twice, scored but not
    registered, without a score, or with a score that is not a finite number within its bounds.
    """
    ids = tuple(item_ids)
    problems: list[str] = []
    if not ids:
        problems.append("no item is registered; register the ids of the items to be scored")
    problems += _listed("registered more than once", "", _repeated(ids), len(ids))
    scores: dict[str, NDArray[np.float64]] = {}
    for arm, rows in rows_by_arm.items():
        found = _problems_of(arm, rows, ids, None if bounds is None else bounds[arm])
        if isinstance(found, list):
            problems += found
        else:
            scores[arm] = found
    return PairedScores(ids, {} if problems else scores, tuple(problems))


def _problems_of(
    arm: str, rows: Rows, ids: tuple[str, ...], bounds: Bounds | None
) -> NDArray[np.float64] | list[str]:
    pairs = list(rows.items()) if isinstance(rows, Mapping) else list(rows)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        return [f"arm {arm}: scores come without item ids; give (id, score) pairs to be joined"]
    by_id = dict(pairs)
    of_arm, n, registered = f"arm {arm}: ", len(ids), set(ids)
    repeated = _repeated([item for item, _ in pairs]) if len(by_id) < len(pairs) else []
    problems = _listed("scored more than once; average an item first", of_arm, repeated, n)
    unmatched = [item for item in by_id if item not in registered]
    problems += _listed("scored but not registered", of_arm, unmatched, n)
    missing = [item for item in ids if by_id.get(item) is None]
    problems += _listed("without a score; score them, none may be dropped", of_arm, missing, n)
    if problems:
        return problems
    values = [by_id[item] for item in ids]
    odd = [item for item, v in zip(ids, values, strict=True) if not _within(v, bounds)]
    limits = "" if bounds is None else f" in [{bounds[0]:g}, {bounds[1]:g}]"
    problems = _listed(f"with a score that is not a finite number{limits}", of_arm, odd, n)
    if problems:
        return [f"{problems[0]}, e.g. {by_id[odd[0]]!r}"]
    return np.array(values, dtype=np.float64)


def _within(value: float | None, bounds: Bounds | None) -> bool:
    if not isinstance(value, Real) or not math.isfinite(value):
        return False
    return bounds is None or bounds[0] <= value <= bounds[1]


def _repeated(ids: Sequence[str]) -> list[str]:
    return [item for item, count in Counter(ids).items() if count > 1]


def _listed(what: str, of_arm: str, items: Sequence[str], n: int) -> list[str]:
    """One line for all items that share a fault, or none."""
    if not items:
        return []
    shown = ", ".join(str(item) for item in items[:_SHOWN])
    more = ", ..." if len(items) > _SHOWN else ""
    return [f"{of_arm}{len(items)} of {n} items {what} ({shown}{more})"]
