"""A rule that can't come out both ways is not a test."""

import numpy as np

from harness.decisions.criterion import Criterion
from harness.decisions.methods import Method, registered_method
from harness.decisions.pairing import PairedScores
from harness.decisions.rule import sample_of
from harness.errors import StatisticsError
from harness.statistics.hoeffding_rule import required_n_hoeffding


def can_come_out_both_ways(criterion: Criterion, n: int) -> list[str]:
    """Return a problem for each of VALIDATED and REFUTED that no possible data at this n reach.

    The extreme data go through the registered method itself: every item at its best, then every
    item at its worst. Raises CardError when the criterion can't be applied at all.
    """
    method = registered_method(criterion)
    where = f"criterion {criterion.id}: "
    if n < method.min_n:
        return [f"{where}{method.name} needs at least {method.min_n} units, n is {n}"]
    best, worst = _lower_at_best(criterion, method, n), _upper_at_worst(criterion, method, n)
    margin, problems = criterion.margin, []
    advice = _advice(criterion)
    if best <= margin:
        problems.append(
            f"{where}can't be VALIDATED at n={n}: with every item at its best the lower limit is"
            f" {best:+.6g}, not above the margin {margin:+g}; {advice}"
        )
    if worst >= margin:
        problems.append(
            f"{where}can't be REFUTED at n={n}: with every item at its worst the upper limit is"
            f" {worst:+.6g}, not below the margin {margin:+g}; {advice}"
        )
    return problems


def _lower_at_best(criterion: Criterion, method: Method, n: int) -> float:
    used = criterion.contrast()
    if method.any_spread:
        return used.range_hi
    at_best = {arm: used.bounds[arm][w > 0] for arm, w in used.weights.items()}
    return _limits(criterion, method, at_best, n)[0]


def _upper_at_worst(criterion: Criterion, method: Method, n: int) -> float:
    used = criterion.contrast()
    if method.any_spread:
        return used.range_lo
    at_worst = {arm: used.bounds[arm][w < 0] for arm, w in used.weights.items()}
    return _limits(criterion, method, at_worst, n)[1]


def _limits(
    criterion: Criterion, method: Method, score_of_arm: dict[str, float], n: int
) -> tuple[float, float]:
    ids = tuple(str(item) for item in range(n))
    scores = {arm: np.full(n, score) for arm, score in score_of_arm.items()}
    interval = method.limits(sample_of(criterion, PairedScores(ids, scores, ()), None), criterion)
    return interval.lower, interval.upper


def _advice(criterion: Criterion) -> str:
    """Name the n that would do for a Hoeffding rule; else say what can be changed."""
    used = criterion.contrast()
    room = min(used.range_hi - criterion.margin, criterion.margin - used.range_lo)
    if room <= 0.0:
        return f"the contrast lies in [{used.range_lo:g}, {used.range_hi:g}]: change the margin"
    if criterion.method != "paired_hoeffding":
        return "score more items or change the margin"
    try:
        needed = required_n_hoeffding(used.range, criterion.alpha, room, criterion.sides)
    except StatisticsError:
        return "change the margin"
    return f"score at least {needed} items or change the margin"
