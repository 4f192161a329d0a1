"""One registered criterion: which contrast has to lie above which margin, and how that is shown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.cards import CriterionSpec, DecisionRule
from harness.components import Component, Components
from harness.errors import CardError, StatisticsError
from harness.names import POINT_ESTIMATE
from harness.statistics.contrasts import Bounds, Contrast, contrast


class Unit(StrEnum):
    """What is counted as one independent observation, hence what the verdict may speak of."""

    FIXED_CHECKPOINT_ITEMS = "fixed_checkpoint_items"  # items: a claim about these checkpoints
    SEEDS = "seeds"  # training runs: a claim about the method


@dataclass(frozen=True, slots=True)
class Criterion:
    """VALIDATED when the contrast of ``weights`` is shown to lie above ``margin``.

    ``sides=2`` splits alpha over the two limits, so each of VALIDATED and REFUTED is wrong with
    probability alpha/2 at most; ``sides=1`` grants alpha to each.
    ``order_key`` fixes the item order of a betting method, ``log_events`` the logarithm of
    empirical Bernstein (4 or 3 two-sided), ``seeds`` the training seeds of every arm: with the unit
    ``seeds`` they are counted, else the scores of an item are averaged over them.
    A ``premise`` that is not shown makes the comparison not count. An estimate above ``win`` is
    said to be a win and changes no verdict.
    ``refuted`` (weights, margin), which refutes no value below ``refuted_from``, and ``seed_range``
    (multiples that validate and refute) belong to the methods that compare the estimate itself, see
    ``thresholds``. ``steps``, first and last included, say of which training steps a metric is
    averaged; None means all of them. ``own`` is the method where the experiment declares it.
    Raises CardError for numbers that no rule can be built on.
    """

    id: str
    metric: str
    weights: Mapping[str, float]
    bounds: Bounds | Mapping[str, Bounds]
    margin: float
    alpha: float
    sides: int
    method: str = "paired_hoeffding"
    unit: str = Unit.FIXED_CHECKPOINT_ITEMS
    order_key: str | None = None
    log_events: int | None = None
    seeds: tuple[int, ...] = ()
    premise: bool = False
    win: float | None = None
    refuted: tuple[Mapping[str, float], float] | None = None
    refuted_from: float | None = None
    seed_range: tuple[float, float] | None = None
    steps: tuple[int, int] | None = None
    own: Component | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise CardError(f"criterion {self.id}: alpha is {self.alpha}; it must lie in (0, 1)")
        if self.sides not in (1, 2):
            raise CardError(f"criterion {self.id}: sides is {self.sides!r}; write 1 or 2")
        if not math.isfinite(self.margin):
            raise CardError(f"criterion {self.id}: margin is {self.margin}; it must be finite")
        if self.unit not in set(Unit):
            raise CardError(
                f"criterion {self.id}: unknown unit {self.unit!r}; known: {', '.join(Unit)}"
            )
        self.contrast()
        if self.refuted is not None and set(self.refuted[0]) != set(self.weights):
            raise CardError(
                f"criterion {self.id}: {sorted(self.refuted[0])} refute, {sorted(self.weights)} "
                "validate; weigh the same arms"
            )
        if self.refuted_from is not None and (
            self.refuted is None or not self.refuted_from < self.refuted[1]
        ):
            raise CardError(
                f"criterion {self.id}: what refutes starts at {self.refuted_from:g} and has no "
                "margin above it; give both, the smaller one first"
            )
        if self.seed_range is not None and self.seed_range[0] < self.seed_range[1]:
            raise CardError(
                f"criterion {self.id}: validated above {self.seed_range[0]:g} ranges but refuted "
                f"up to {self.seed_range[1]:g}; the first must not be smaller"
            )

    @classmethod
    def resolved(
        cls, stated: CriterionSpec, rule: DecisionRule, components: Components | None = None
    ) -> "Criterion":
        """A criterion as its rule completes it: what it leaves open is the rule's.

        `components` are the experiment's, which may declare the method.
        """
        method = stated.method or rule.method
        own = None if components is None else components.get("decision method", method)
        refuted, ranges = stated.refuted, stated.seed_range
        return cls(
            id=stated.id,
            metric=stated.metric,
            weights=stated.weights,
            bounds=stated.bounds,
            margin=stated.margin,
            alpha=rule.alpha,
            sides=rule.sides,
            method=method,
            own=own,
            unit=stated.unit or rule.unit,
            order_key=rule.order_key,
            log_events=rule.log_events,
            seeds=tuple(rule.seeds if stated.seeds is None else stated.seeds),
            premise=stated.premise,
            win=stated.win,
            refuted=None if refuted is None else (refuted.weights, refuted.margin),
            refuted_from=None if refuted is None else refuted.least,
            seed_range=None if ranges is None else (ranges.validated, ranges.refuted),
            steps=stated.steps,
        )

    def contrast(self) -> Contrast:
        """The contrast of the arms with a non-zero weight, with its range."""
        try:
            return contrast(self.weights, self.bounds)
        except StatisticsError as error:
            raise CardError(f"criterion {self.id}: {error}") from error

    @property
    def refuting(self) -> tuple[Mapping[str, float], float] | None:
        """The contrast that refutes below its margin; of a point estimate the validating one."""
        return (self.weights, self.margin) if self.method == POINT_ESTIMATE else self.refuted

    @property
    def pair(self) -> tuple[str, str] | None:
        """(treatment, baseline) when the weights are +1 and -1 and all bounds are 0 and 1."""
        c = self.contrast()
        if sorted(c.weights.values()) != [-1.0, 1.0]:
            return None
        if any(bounds != (0.0, 1.0) for bounds in c.bounds.values()):
            return None
        by_weight = {weight: arm for arm, weight in c.weights.items()}
        return by_weight[1.0], by_weight[-1.0]
