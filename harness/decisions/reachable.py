"""A rule that can't come out both ways is not a test."""

from collections.abc import Mapping

import numpy as np

from harness.decisions.criterion import Criterion
from harness.decisions.method import Method
from harness.decisions.methods import registered_method
from harness.decisions.pairing import PairedScores
from harness.decisions.rule import NEAR_TIE, sample_of
from harness.errors import CardError, StatisticsError
from harness.statistics.contrasts import contrast
from harness.statistics.hoeffding_rule import required_n_hoeffding

SPREAD = 1e-6
"""How far one score of otherwise equal ones is moved, in ranges, for a method that needs spread."""


def can_come_out_both_ways(criterion: Criterion, n: int) -> list[str]:
    """Return a problem for each of VALIDATED and REFUTED that no possible data at this n reach.

    The extreme data go through the registered method itself: every item at its best, then every
    item at its worst. Raises CardError when the criterion can't be applied at all.
    """
    method = registered_method(criterion)
    where = f"criterion {criterion.id}: "
    if n < method.min_n:
        return [f"{where}{method.name} needs at least {method.min_n} units, n is {n}"]
    if method.by_estimate:
        return [f"{where}{problem}" for problem in threshold_problems(criterion)]
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


def threshold_problems(criterion: Criterion) -> list[str]:
    """Where thresholds on the estimate can't be met, or both at once, by any means in bounds."""
    used, problems = criterion.contrast(), []
    if used.range_hi < criterion.margin:
        problems.append(
            f"can't be VALIDATED: the contrast reaches {used.range_hi:g}, the margin is "
            f"{criterion.margin:g}; lower the margin"
        )
    if used.range_lo >= criterion.margin:
        problems.append(
            f"is always VALIDATED: the contrast is at least {used.range_lo:g}, the margin is "
            f"{criterion.margin:g}; raise the margin"
        )
    if criterion.refuting is None or problems:
        return problems
    weights, margin = criterion.refuting
    lowest = _lowest_refuting_when_validated(criterion, weights, margin)
    if lowest < margin - NEAR_TIE:
        problems.append(
            f"can be VALIDATED and REFUTED at once: where it is validated the refuting contrast "
            f"goes down to {lowest:g}, and refutes below {margin:g}; keep them apart"
        )
    other = contrast(weights, criterion.bounds)
    if criterion.refuted_from is not None and other.range_hi < criterion.refuted_from:
        problems.append(
            f"can't be REFUTED: the refuting contrast is at most {other.range_hi:g}, it refutes "
            f"from {criterion.refuted_from:g}; lower that"
        )
    if other.range_lo >= margin:
        problems.append(
            f"can't be REFUTED: the refuting contrast is at least {other.range_lo:g}, its margin "
            f"is {margin:g}; raise that margin"
        )
    return problems


def _lowest_refuting_when_validated(
    criterion: Criterion, weights: Mapping[str, float], margin: float
) -> float:
    """The least value of the refuting contrast over all means that validate.

    From the means at which it is least, those are moved first that cost least of it for what they
    give to the validating contrast: with one constraint over a box that is optimal.
    """
    bounds = criterion.contrast().bounds
    start = {arm: bounds[arm][weights[arm] < 0] for arm in bounds}
    lowest = sum(weights[arm] * x for arm, x in start.items())
    missing = criterion.margin - sum(criterion.weights[arm] * x for arm, x in start.items())
    moves = []
    for arm, (low, high) in bounds.items():
        toward = (low if start[arm] == high else high) - start[arm]
        gives, costs = criterion.weights[arm] * toward, weights[arm] * toward
        if gives > 0.0:
            moves.append((costs / gives, gives))
    for price, gives in sorted(moves):
        taken = min(max(missing, 0.0), gives)
        lowest, missing = lowest + price * taken, missing - taken
    return lowest if missing <= NEAR_TIE else margin


def _lower_at_best(criterion: Criterion, method: Method, n: int) -> float:
    used = criterion.contrast()
    if method.any_spread and criterion.own is None:
        return used.range_hi
    at_best = {arm: used.bounds[arm][w > 0] for arm, w in used.weights.items()}
    return _limits(criterion, method, at_best, n)[0]


def _upper_at_worst(criterion: Criterion, method: Method, n: int) -> float:
    used = criterion.contrast()
    if method.any_spread and criterion.own is None:
        return used.range_lo
    at_worst = {arm: used.bounds[arm][w < 0] for arm, w in used.weights.items()}
    return _limits(criterion, method, at_worst, n)[1]


def _limits(
    criterion: Criterion, method: Method, score_of_arm: dict[str, float], n: int
) -> tuple[float, float]:
    ids = tuple(str(item) for item in range(n))
    scores = {arm: np.full(n, score) for arm, score in score_of_arm.items()}
    if method.any_spread:  # an own method says so, and is tried with next to no spread
        for arm, (low, high) in criterion.contrast().bounds.items():
            scores[arm][0] += (low + high - 2.0 * scores[arm][0]) * SPREAD
    sample = sample_of(criterion, PairedScores(ids, scores, ()), None)
    try:
        interval = method.limits(sample, criterion)
    except Exception as error:
        if criterion.own is None:
            raise
        raise CardError(
            f"method {method.name} raised {type(error).__name__} ({error}); correct {method.home}"
        ) from error
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
