"""Activation gates: the treatment did what it says, measured on what the pilot executed.

Every figure is counted from stored rollouts; none is read from a configuration. Where several arms
or steps each have a value, the worst is reported: the one that violates the bounds most, or comes
closest to them.
"""

import math
from collections.abc import Sequence

from harness.audit.finding import GateFinding, bounds_of
from harness.audit.metrics import executed as of_arms
from harness.audit.metrics import kernel_arms, staleness
from harness.audit.metrics.metric import GateMetric, Unmeasurable, Values
from harness.audit.metrics.steps import step_figure
from harness.audit.pilot import Executed, Pilot, executed, pilot_problems
from harness.audit.tried import changed_pilots
from harness.cards import Experiment, GateCheck
from harness.components import nearest
from harness.errors import CardError

METRICS: dict[str, GateMetric] = {
    metric.name: metric for metric in (*of_arms.METRICS, *kernel_arms.METRICS, *staleness.METRICS)
}
"""The harness's own, by name. A name with a '/' is a figure that steps log."""


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
    try:
        metric = metric_of(check, experiment)
    except CardError as error:
        return GateFinding(check, None, (str(error),))
    broken = pilot_problems(experiment, pilot)
    if broken:
        return GateFinding(check, None, tuple(f"gate {check.metric}: {line}" for line in broken))
    measured = executed(experiment, pilot, texts, check.roles)
    own = check.metric not in METRICS
    try:
        value = _value(metric, measured, check)
    except Unmeasurable as error:
        return GateFinding(check, None, (f"gate {check.metric}: {error}",))
    if value is not None and within(value, check):
        return GateFinding(check, value, _untried(metric, measured, check) if own else ())
    shown = f"{value:.6g}" if isinstance(value, float) else repr(value)
    line = (
        f"gate {check.metric}: {shown} was executed, bounds {bounds_of(check)} {metric.unit} "
        f"({check.measures}); {metric.remedy}"
    )
    return GateFinding(check, value, (line,))


def metric_of(check: GateCheck, experiment: Experiment) -> GateMetric:
    """The gate's metric: the harness's own, the experiment's, or a figure that steps log.

    Raises:
        CardError: there is none, or two have that name.
    """
    name, own = check.metric, experiment.components.own(GateMetric)
    if name in own and name in METRICS:
        raise CardError(
            f"gate {name}: the experiment declares a metric that the harness has; rename it"
        )
    if metric := own.get(name) or METRICS.get(name):
        return metric
    if "/" in name:
        return step_figure(name)
    known = sorted({*METRICS, *own})
    raise CardError(
        f"gate {name}: no such measurement{nearest(name, known)}; use one of {', '.join(known)}, "
        "a figure that steps log, whose name has a '/', or name the file that declares it in "
        "components"
    )


def _value(metric: GateMetric, pilot: Executed, check: GateCheck) -> float | str | None:
    """The worst value, of code that may be anyone's."""
    try:
        values = metric.measure(pilot)
        return worst(values if _names(values) else [float(value) for value in values], check)
    except Unmeasurable:
        raise
    except Exception as error:
        raise Unmeasurable(
            f"its measurement raised {type(error).__name__} ({error}); correct {metric.home}"
        ) from error


def _names(values: Values) -> bool:
    return all(isinstance(value, str) for value in values)


def _untried(metric: GateMetric, pilot: Executed, check: GateCheck) -> tuple[str, ...]:
    """A line if no changed pilot fails the gate: its author's promise of a range is not enough."""
    tried = 0
    for changed in changed_pilots(pilot):
        tried += 1
        try:
            value = _value(metric, changed, check)
        except Unmeasurable as error:
            if error.__cause__ is None:  # said by the metric, and no mistake of its code
                return ()
            continue
        if value is None or not within(value, check):
            return ()
    return (
        f"gate {check.metric}: passes on {tried} of {tried} pilots that were changed on purpose, "
        f"bounds {bounds_of(check)}; measure what the treatment changes, or narrow the bounds",
    )


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
