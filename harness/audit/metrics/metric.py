"""A gate metric, declared once: how it is measured, in what unit, what it can be, what to do."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from harness.audit.pilot import Executed
from harness.cards import Experiment
from harness.components import Component

Values = Sequence[float] | Sequence[str]

Measure = Callable[[Executed], Values]


class Unmeasurable(Exception):
    """The pilot does not hold what a gate measures."""


@dataclass(frozen=True)
class Range:
    """The values that a metric can take at all, both ends included."""

    low: float
    high: float
    whole: bool = False


RangeOf = Callable[[Experiment], Range]


@dataclass(frozen=True)
class GateMetric(Component):
    """What a gate can bound.

    `measure` gives the value of each arm or step, numbers or names; it raises Unmeasurable where
    the pilot does not hold them. `range` says what numbers can be, whatever the arms do; names have
    none. `remedy` is what to do about a value out of bounds.
    """

    kind: ClassVar[str] = "gate metric"

    measure: Measure
    unit: str
    range: RangeOf | None
    remedy: str

    @property
    def home(self) -> str:
        """The module that declares it."""
        return self.measure.__module__


def gate_metric(
    name: str | None = None,
    *,
    unit: str,
    remedy: str,
    range: tuple[float, float] | RangeOf | None = (-math.inf, math.inf),
) -> Callable[[Measure], GateMetric]:
    """Declare a function from the executed pilot to values as a gate metric.

    Where it gives several values, of arms or of steps, the gate is about the worst of them.

    Args:
        name: what a gate calls it; the function's own name if not given.
        unit: of the values, as in "nats a token".
        remedy: what to do about a value out of bounds.
        range: the least and the greatest value that there can be, of some experiment or of any;
            None if values are names.
    """

    def declare(measure: Measure) -> GateMetric:
        return GateMetric(name or measure.__name__, measure, unit, _range_of(range), remedy)

    return declare


def at_least(low: float, *, whole: bool = False) -> RangeOf:
    """From `low` on without an end, in every experiment."""
    return lambda _: Range(low, math.inf, whole)


def share(_: Experiment) -> Range:
    """A fraction."""
    return Range(0.0, 1.0)


def _range_of(stated: tuple[float, float] | RangeOf | None) -> RangeOf | None:
    if isinstance(stated, tuple):
        low, high = stated
        return lambda _: Range(low, high)
    return stated
