"""Activation gates: the treatment did what it says, measured on what the pilot executed.

Every figure is counted from stored rollouts; none is read from a configuration. Where several arms
or steps each have a value, the worst is reported: the one that violates the bounds most, or comes
closest to them.
"""

import math
from collections.abc import Sequence

from harness.audit.executed_gates import EXECUTED_METRICS
from harness.audit.finding import GateFinding, bounds_of
from harness.audit.gate_metric import GateMetric, Unmeasurable, Values
from harness.audit.pilot import Pilot, executed, pilot_problems
from harness.audit.staleness_gates import STALENESS_METRICS
from harness.cards import Experiment, GateCheck

METRICS: dict[str, GateMetric] = {**EXECUTED_METRICS, **STALENESS_METRICS}
"""Every figure that a gate can bound, by name."""


def check_gate(
    check: GateCheck, pilot: Pilot, experiment: Experiment, texts: Sequence[str] = ()
) -> GateFinding:
    """One gate's executed value against its bounds, over the arms that the pilot holds.

    An unknown metric, a pilot that is not whole and a value that is not a finite number all fail
    the gate.

    Args:
        check: the metric and its bounds.
        pilot: the stored steps by arm.
        experiment: what is registered of the arms.
        texts: the questions of the train split, from which baselines of similar prompts are
            worked out again; without them such baselines are taken as recorded.
    """
    metric = METRICS.get(check.metric)
    if metric is None:
        return GateFinding(check, None, (unknown(check),))
    broken = pilot_problems(experiment, pilot)
    if broken:
        return GateFinding(check, None, tuple(f"gate {check.metric}: {line}" for line in broken))
    try:
        values = metric.measure(executed(experiment, pilot, texts))
    except Unmeasurable as error:
        return GateFinding(check, None, (f"gate {check.metric}: {error}",))
    value = worst(values, check)
    if value is not None and within(value, check):
        return GateFinding(check, value)
    shown = f"{value:.6g}" if isinstance(value, float) else repr(value)
    line = (
        f"gate {check.metric}: {shown} was executed, bounds {bounds_of(check)} {metric.unit} "
        f"({check.measures}); {metric.remedy}"
    )
    return GateFinding(check, value, (line,))


def unknown(check: GateCheck) -> str:
    """The line about a gate whose metric nothing measures."""
    return f"gate {check.metric}: no such measurement; use one of {', '.join(sorted(METRICS))}"


def within(value: float | str, check: GateCheck) -> bool:
    """Whether a gate accepts a value; NaN never, and a gate without bounds accepts nothing."""
    if check.one_of is not None:
        return value in check.one_of
    if isinstance(value, str) or (check.min is None and check.max is None):
        return False
    low = -math.inf if check.min is None else check.min
    high = math.inf if check.max is None else check.max
    return math.isfinite(value) and low <= value <= high


def worst(values: Values, check: GateCheck) -> float | str | None:
    """The value that violates the bounds most, or comes closest to them; None of none."""
    names = sorted({value for value in values if isinstance(value, str)})
    if names:
        # several names in one run are themselves a violation
        return ", ".join(names)
    numbers = [value for value in values if isinstance(value, float)]
    if any(math.isnan(value) for value in numbers):
        return math.nan
    return min(numbers, key=lambda value: _slack(value, check), default=None)


def _slack(value: float, check: GateCheck) -> float:
    """How far inside the bounds a value lies; negative outside."""
    below = math.inf if check.min is None else value - check.min
    above = math.inf if check.max is None else check.max - value
    return min(below, above)
