"""From stored rows and steps to the scores that criteria compare."""

import math
import re
from collections.abc import Sequence

from harness.errors import RunError
from harness.records import EpisodeRow, ItemRow, Row, StepFigures
from harness.statistics.passk import best_of, pass_at_k

_PASS_AT = re.compile(r"pass@(\d+)")
_BEST_OF = re.compile(r"(.+)_best_of_(\d+)")


def item_scores(rows: Sequence[Row], metric: str) -> dict[str, float]:
    """Scores by item id. An item of several draws has the mean of them, or the best of so many.

    Raises:
        StatisticsError: an item has fewer samples or draws than the metric needs.
        RunError: its rows have no score of that name, or items have other draws than their like.
    """
    scores: dict[str, float] = {}
    draws: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        if "correct" in row:
            scores[row["item_id"]] = item_score(row, metric)
        else:
            draws.setdefault(row["item_id"], []).append(row)
    numbers = {tuple(row["draw"] for row in of) for of in draws.values()}
    if len(numbers) > 1:
        raise RunError(
            f"items have the draws {sorted(numbers)}; a missing draw is not a smaller mean, so run "
            "again with --retrain"
        )
    return scores | {item: drawn_score(of, metric) for item, of in draws.items()}


def drawn_score(draws: Sequence[EpisodeRow], metric: str) -> float:
    """A score of an item's draws: their mean, or for `<name>_best_of_<k>` the best of k.

    Raises:
        StatisticsError: there are fewer than k draws.
        RunError: the draws have no score of that name.
    """
    named = _BEST_OF.fullmatch(metric)
    name, k = (named[1], int(named[2])) if named else (metric, 1)
    known = set(draws[0]["scores"])
    if name not in known:
        raise RunError(
            f"item {draws[0]['item_id']}: no score {name!r}, episodes have {sorted(known)}; "
            "register one of these"
        )
    return best_of([draw["scores"][name] for draw in draws], k)


def item_score(row: ItemRow, metric: str) -> float:
    """An item's score: pass@k of its own samples for a metric of that name, else exact match.

    Raises:
        StatisticsError: the item has fewer than k samples.
    """
    named = _PASS_AT.fullmatch(metric)
    flags = row.get("correct_S", [row["correct"]])
    if named:
        return pass_at_k(len(flags), sum(flags), int(named[1]))
    return float(row["correct"])


def of_steps(metric: str) -> bool:
    """Whether a metric is one of training steps, and not of evaluated items."""
    return "/" in metric


def step_mean(
    name: str, records: Sequence[StepFigures], metric: str, first: int, last: int
) -> float:
    """A metric's mean over the steps from `first` to `last`: correlated steps make one number.

    Raises:
        RunError: a step is missing, or has no finite value; fewer steps would be another mean.
    """
    values = {
        record["step"]: record["metrics"].get(metric, math.nan)
        for record in records
        if first <= record["step"] <= last
    }
    missing = [s for s in range(first, last + 1) if not math.isfinite(values.get(s, math.nan))]
    if missing:
        raise RunError(
            f"{name}: {metric} has no value at steps {missing[:5]}, steps {first} to {last} are "
            "registered; run again with --retrain, or register steps that are measured"
        )
    return math.fsum(values.values()) / len(values)
