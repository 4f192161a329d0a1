"""A decision method, declared once: limits of a contrast at an error rate, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from harness.components import Component
from harness.decisions.criterion import Criterion, Unit
from harness.decisions.sample import Sample
from harness.names import BY_ESTIMATE
from harness.statistics.intervals import Interval

Limits = Callable[[Sample, Criterion], Interval]
PAbove = Callable[[Sample, Criterion, float], float]
ExactlyAbove = Callable[[Sample, Criterion, float], bool | None]

SMALLEST_P = 1e-12
"""Below it, p values of a method that gives limits only are not told apart."""


@dataclass(frozen=True)
class Method(Component):
    """One registrable method.

    ``p_above`` is the p value of "the contrast lies above this margin"; "below" is asked with the
    signs of the data and of the margin exchanged, so both directions go through the same code.
    ``exactly_above`` settles a near tie between the lower limit and a margin; None if it can't be.
    ``finite_sample_valid``: its error rate holds at every n, not in the limit only.
    ``reference`` gives the same limits by other code, to 1e-9; of the harness's own, which other
    code in ``audit`` holds to the registration, there is none.
    """

    kind: ClassVar[str] = "decision method"

    limits: Limits
    p_above: PAbove
    exactly_above: ExactlyAbove
    finite_sample_valid: bool
    binary: bool = False  # needs two arms scored 0 or 1
    unit: Unit | None = Unit.FIXED_CHECKPOINT_ITEMS  # None: any
    min_n: int = 1
    any_spread: bool = False  # its width follows the data's spread down to any value above 0
    reference: Limits | None = None

    @property
    def home(self) -> str:
        """The module that declares it."""
        return self.limits.__module__

    @property
    def unverified(self) -> bool:
        """Whether it has no reference."""
        return self.reference is None

    @property
    def by_estimate(self) -> bool:
        """Whether thresholds on the estimate decide, see `thresholds`; the limits are shown."""
        return self.name in BY_ESTIMATE


def decision_method(
    name: str | None = None,
    *,
    finite_sample_valid: bool,
    p_above: PAbove | None = None,
    reference: Limits | None = None,
    binary: bool = False,
    unit: Unit | None = Unit.FIXED_CHECKPOINT_ITEMS,
    min_n: int = 1,
    any_spread: bool = False,
) -> Callable[[Limits], Method]:
    """Declare a function from a sample and its criterion to an `Interval` as a decision method.

    Args:
        name: what a rule calls it; the function's own name if not given.
        finite_sample_valid: whether its error rate holds at every n, or in the limit only.
        p_above: (sample, criterion, margin) -> p value of "above the margin"; if not given, the
            smallest alpha at which the lower limit lies above it.
        reference: the same limits by other code.
        binary: whether it needs two arms scored 0 or 1; `sample.counts` then has their 2x2 table.
        unit: what it counts; None if either will do.
        min_n: the fewest units that it can work with.
        any_spread: whether its width goes to 0 with the spread of the data.
    """

    def declare(limits: Limits) -> Method:
        return Method(
            name=name or limits.__name__,
            limits=limits,
            p_above=p_above or by_inversion(limits),
            exactly_above=lambda *_: None,
            finite_sample_valid=finite_sample_valid,
            binary=binary,
            unit=unit,
            min_n=min_n,
            any_spread=any_spread,
            reference=reference,
        )

    return declare


def by_inversion(limits: Limits) -> PAbove:
    """The p value that limits imply: the smallest alpha at which the lower one clears the margin.

    Bisected in log alpha to 1e-9 of it; limits must widen as alpha falls. 1 where none clears.
    """

    def p_above(sample: Sample, criterion: Criterion, margin: float) -> float:
        def clears(log_alpha: float) -> bool:
            at = replace(criterion, alpha=math.exp(log_alpha))
            return limits(sample, at).lower > margin

        low, high = math.log(SMALLEST_P), math.log1p(-SMALLEST_P)
        if not clears(high):
            return 1.0
        if clears(low):
            return SMALLEST_P
        while high - low > 1e-9:
            middle = (low + high) / 2.0
            low, high = (low, middle) if clears(middle) else (middle, high)
        return math.exp(high)

    return p_above
