"""Every gate can come out both ways: a value that passes and one that fails, both reachable."""

import math
import re
from collections.abc import Sequence

from harness.audit.finding import bounds_of
from harness.audit.gates import metric_of
from harness.audit.metrics.metric import Range
from harness.cards import Experiment, GateCheck
from harness.errors import CardError
from harness.names import ACCURACY
from harness.tasks.sec_search.metrics import FIGURES


def reachable_lines(
    experiment: Experiment, gates: Sequence[GateCheck]
) -> tuple[list[str], list[str]]:
    """(problems, notes): gates that can't come out both ways, and examples for those that can."""
    problems, notes = [], []
    for check in gates:
        try:
            metric = metric_of(check, experiment)
        except CardError as error:
            problems.append(str(error))
            continue
        of = metric.range
        passes, fails = _names(check) if of is None else _numbers(check, of(experiment))
        for example, verb in ((passes, "passes"), (fails, "fails")):
            if example is None:
                problems.append(
                    f"gate {check.metric}: no reachable value {verb}, bounds {bounds_of(check)}; "
                    "such a gate tests nothing, change its bounds"
                )
        if passes is not None and fails is not None:
            notes.append(
                f"gate {check.metric}, bounds {bounds_of(check)}: {passes} would pass, "
                f"{fails} would fail"
            )
    return problems, notes


def unscored_lines(experiment: Experiment) -> list[str]:
    """Criteria that compare a score which no evaluated item or episode has, supporting ones too.

    What training steps measure is known once there is a step.
    """
    search = experiment.registration.search is not None
    scores, of_k = (FIGURES, r"(.+)_best_of_\d+") if search else (ACCURACY, r"(pass)@\d+")
    names = [*scores, "<one of these>_best_of_<k>" if search else "pass@<k>"]
    problems = []
    for criterion in (*experiment.rule.criteria, *experiment.registration.supporting):
        best = re.fullmatch(of_k, criterion.metric)
        known = "/" in criterion.metric or criterion.metric in scores
        if not known and not (best and (not search or best[1] in scores)):
            problems.append(
                f"criterion {criterion.id}: no evaluated item has {criterion.metric!r}; register "
                f"one of {', '.join(names)}, or a figure of training steps, whose name has a '/'"
            )
    return problems


def _numbers(check: GateCheck, range_: Range) -> tuple[str | None, str | None]:
    if check.one_of is not None or (check.min is None and check.max is None):
        return None, f"{range_.low:g}"
    low = range_.low if check.min is None else max(range_.low, check.min)
    high = range_.high if check.max is None else min(range_.high, check.max)
    if range_.whole:
        low, high = float(math.ceil(low)), math.floor(high) if math.isfinite(high) else high
    passes = f"{low if math.isfinite(low) else high:g}" if low <= high else None
    if check.min is not None and range_.low < check.min:
        return passes, f"{range_.low:g}"
    if check.max is not None and range_.high > check.max:
        beyond = check.max + 1.0 if math.isinf(range_.high) else range_.high
        return passes, f"{beyond:g}"
    return passes, None


def _names(check: GateCheck) -> tuple[str | None, str | None]:
    return (repr(check.one_of[0]) if check.one_of else None), "any other name"
