"""How far apart a service reads one set of weights, and what is then another set.

Sampler and learner may be other programs, compute in bfloat16 and batch each request with those of
others, so no fixed bound fits every service. Its floor is measured: the largest difference between
readings (log-probs of one text, T) that are known to be of the same weights.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from harness.records import StepRecord

Reading = Sequence[float]

SAME = 1e-5
"""Log-probs of one text under the same weights, cached or not, differ by about 1e-6 in float32."""

FACTOR = 4.0
"""Times the floor: the largest of 32 differences is seldom so much larger than another time."""

CLEARANCE = 10.0
"""A step must move log-probs this many times further than the bound to show anything."""


def distance(a: Reading, b: Reading) -> float:
    """The largest difference of two readings of one text; NaN if they are not that, or not finite.

    No bound admits a NaN.
    """
    if len(a) != len(b) or not a or not np.isfinite([*a, *b]).all():
        return float("nan")
    return float(np.abs(np.subtract(a, b)).max())


def noise_floor(pairs: Iterable[tuple[Reading, Reading]]) -> float:
    """The largest distance within pairs of the same weights; 0 of none, NaN if one has none."""
    return float(np.max([0.0, *(distance(a, b) for a, b in pairs)]))


def tolerance(floor: float, least: float = SAME) -> float:
    """From where on two readings are of other weights; `least` where nothing was measured."""
    return max(least, FACTOR * floor) if np.isfinite(floor) else least


def service_tolerance(floor: float, *, exact: bool) -> float:
    """Between two clients of one kind, of a service that keeps every bit or does not."""
    return tolerance(floor, 0.0 if exact else SAME)


def initial_pairs(first: StepRecord | None) -> list[tuple[Reading, Reading]]:
    """Sampler and learner before the first update, which both hold the initial weights."""
    found = None if first is None or first["step"] != 0 else first.get("fingerprints")
    return [] if found is None else [(found["sampler_T"], found["learner_T"])]


def arm_tolerance(first: StepRecord | None) -> float:
    """The tolerance between a sampler and a learner of one arm, from its first step."""
    return tolerance(noise_floor(initial_pairs(first)))
