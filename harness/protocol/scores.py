"""From stored rows and steps to the scores that criteria compare."""

import math
import re
from collections.abc import Sequence

from harness.errors import RunError
from harness.records import ItemRow, StepFigures
from harness.statistics.passk import pass_at_k

_PASS_AT = re.compile(r"pass@(\d+)")


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
