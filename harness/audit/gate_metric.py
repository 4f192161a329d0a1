"""A gate metric, declared once: how it is measured, in what unit, what it can be, what to do."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.audit.pilot import Executed
from harness.cards import Experiment

Values = Sequence[float] | Sequence[str]


class Unmeasurable(Exception):
    """The pilot does not hold what a gate measures."""


@dataclass(frozen=True)
class Range:
    """The values that a metric can take at all, both ends included."""

    low: float
    high: float
    whole: bool = False


@dataclass(frozen=True)
class GateMetric:
    """What a gate can bound.

    `measure` gives the value of each arm or step, numbers or names; it raises Unmeasurable where
    the pilot does not hold them. `range` says what numbers can be, whatever the arms do; names have
    none. `remedy` is what to do about a value out of bounds.
    """

    measure: Callable[[Executed], Values]
    unit: str
    range: Callable[[Experiment], Range] | None
    remedy: str


def at_least(low: float, *, whole: bool = False) -> Callable[[Experiment], Range]:
    """From `low` on without an end, in every experiment."""
    return lambda _: Range(low, math.inf, whole)


def share(_: Experiment) -> Range:
    """A fraction."""
    return Range(0.0, 1.0)
