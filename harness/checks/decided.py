"""A decision worked out again from what was stored: the estimate, its margin, and what follows."""

import math
from collections.abc import Mapping, Sequence

from harness.cards import Criterion
from harness.decisions.outcome import Outcome, Verdict
from harness.errors import RunError
from harness.records import ItemRow, StepFigures

CLOSE = 1e-9
"""Two float64 means of the same thousand scores."""


def outcome_problems(
    stated: Criterion, outcome: Outcome, role_means: Mapping[str, float]
) -> list[str]:
    """Where an outcome is not that of the stated criterion on these means.

    Args:
        stated: the criterion of card or registration.
        outcome: what was decided; an INVALID one has nothing to compare.
        role_means: the mean score of every weighed role, over its arms, by role.
    """
    if outcome.estimate is None:
        return []
    problems, where = [], f"criterion {stated.id}"
    expected = math.fsum(w * role_means[role] for role, w in stated.weights.items())
    if not abs(outcome.estimate - expected) <= CLOSE:
        problems.append(
            f"{where}: decided on the estimate {outcome.estimate:.6g}, the stored results of "
            f"{' and '.join(stated.weights)} make {expected:.6g}; look for arms or signs exchanged"
        )
    if outcome.margin != stated.margin:
        problems.append(
            f"{where}: decided at the margin {outcome.margin:g}, {stated.margin:g} is registered"
        )
    # thresholds on the estimate have no p value, and their limits decide nothing
    if outcome.p_validated is None or outcome.lower is None or outcome.upper is None:
        return problems
    shown = {
        Verdict.VALIDATED: outcome.lower >= stated.margin - CLOSE,
        Verdict.REFUTED: outcome.upper <= stated.margin + CLOSE,
    }
    if not shown.get(outcome.verdict, True):
        problems.append(
            f"{where}: {outcome.verdict} does not follow from limits [{outcome.lower:.6g}, "
            f"{outcome.upper:.6g}] and margin {stated.margin:g}"
        )
    return problems


def rows_mean(rows: Sequence[ItemRow], metric: str) -> float:
    """Mean pass@k over items for a metric of that name, else the share of right ones."""
    k = int(metric.removeprefix("pass@")) if metric.startswith("pass@") else 1
    return math.fsum(_pass(row.get("correct_S", [row["correct"]]), k) for row in rows) / len(rows)


def steps_mean(figures: Sequence[StepFigures], metric: str, first: int, last: int) -> float:
    """A metric's mean over these steps.

    Raises:
        RunError: it has no value at one of them.
    """
    by_step = {figure["step"]: figure["metrics"] for figure in figures}
    values = [by_step.get(step, {}).get(metric) for step in range(first, last + 1)]
    found = [value for value in values if value is not None]
    if len(found) != len(values):
        raise RunError(f"{metric} has {len(found)} values in steps {first} to {last}; record it")
    return math.fsum(found) / len(found)


def _pass(flags: Sequence[bool], k: int) -> float:
    # 1 - C(n - c, k) / C(n, k), Chen et al. 2021, equation 1
    n, c = len(flags), sum(flags)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)
