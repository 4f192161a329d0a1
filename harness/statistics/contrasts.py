"""A weighted sum of arms, item by item: z_i = sum_a w_a x_ia, and the range it can take.

Two arms with weights +1, -1 are a paired difference; four cells with +1, -1, -1, +1 a difference
of differences; +1, -1.5 the linear form of "at least 1.5 times", which has no denominator.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import StatisticsError
from harness.statistics.checked import finite, finite_vector

Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Contrast:
    """Weights of the arms that count (none is zero) and the bounds of their scores."""

    weights: Mapping[str, float]
    bounds: Mapping[str, Bounds]

    @property
    def range_lo(self) -> float:
        """Smallest value that z_i can take."""
        return sum(min(w * b for b in self.bounds[arm]) for arm, w in self.weights.items())

    @property
    def range_hi(self) -> float:
        """Largest value that z_i can take."""
        return sum(max(w * b for b in self.bounds[arm]) for arm, w in self.weights.items())

    @property
    def range(self) -> float:
        """R = sum_a |w_a| (hi_a - lo_a); computed, never taken from a user."""
        return sum(
            abs(w) * (self.bounds[a][1] - self.bounds[a][0]) for a, w in self.weights.items()
        )

    def values(self, scores: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
        """Return z_N, one value per item, from aligned score vectors.

        Raises StatisticsError for a missing arm, unequal lengths, or a score that is not finite
        or lies outside its bounds.
        """
        z_N: NDArray[np.float64] | None = None
        for arm, weight in self.weights.items():
            if arm not in scores:
                raise StatisticsError(f"no scores for arm {arm!r}, which has weight {weight:+g}")
            x_N = finite_vector(scores[arm], f"scores of {arm!r}")
            low, high = self.bounds[arm]
            if x_N.min() < low or x_N.max() > high:
                wrong = x_N[(x_N < low) | (x_N > high)][0]
                raise StatisticsError(f"a score of {arm!r} is {wrong}, outside [{low}, {high}]")
            if z_N is not None and x_N.size != z_N.size:
                raise StatisticsError(f"{arm!r} has {x_N.size} scores, another arm {z_N.size}")
            z_N = weight * x_N if z_N is None else z_N + weight * x_N
        if z_N is None:
            raise StatisticsError("a contrast needs at least one arm with a non-zero weight")
        return z_N


def contrast(weights: Mapping[str, float], bounds: Bounds | Mapping[str, Bounds]) -> Contrast:
    """Build a contrast; an arm of weight zero adds nothing to the range and is left out.

    ``bounds`` is one (lo, hi) for all arms or a mapping from arm to (lo, hi).
    Raises StatisticsError when no weight is left, a number is not finite, or lo >= hi.
    """
    used = {a: finite(w, f"weight of {a!r}") for a, w in weights.items() if w != 0}
    if not used:
        raise StatisticsError("all weights are zero: give at least one arm a non-zero weight")
    of_arm: dict[str, Bounds] = {}
    for arm in used:
        if isinstance(bounds, Mapping) and arm not in bounds:
            raise StatisticsError(f"no bounds for arm {arm!r}; give its lowest and highest score")
        low, high = bounds[arm] if isinstance(bounds, Mapping) else bounds
        if finite(low, f"lower bound of {arm!r}") >= finite(high, f"upper bound of {arm!r}"):
            raise StatisticsError(f"bounds of {arm!r} are [{low}, {high}]; lo must be below hi")
        of_arm[arm] = (float(low), float(high))
    return Contrast(used, of_arm)
