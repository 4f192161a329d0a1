"""How far apart a service reads one set of weights, and what is then another set.

Sampler and learner may be other programs, compute in bfloat16 and batch each request with those of
others, so no fixed bound fits every service. Its floor is measured: the largest difference between
readings (log-probs of one text, T) that are known to be of the same weights.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

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


def floor(pairs: Iterable[tuple[Reading, Reading]]) -> float:
    """The largest distance within pairs of the same weights; 0 of none, NaN if one has none."""
    return float(np.max([0.0, *(distance(a, b) for a, b in pairs)]))


def bound(floor: float, least: float = SAME) -> float:
    """From where on two readings are of other weights; `least` where nothing was measured."""
    return max(least, FACTOR * floor) if np.isfinite(floor) else least


def service_tolerance(floor: float, *, exact: bool) -> float:
    """The bound between two clients of one kind, of a service that keeps every bit or does not."""
    return bound(floor, 0.0 if exact else SAME)


def initial_pairs(first: StepRecord | None) -> list[tuple[Reading, Reading]]:
    """Sampler and learner before the first update, which both hold the initial weights."""
    prints = None if first is None or first["step"] != 0 else first.get("fingerprints")
    return [] if prints is None else [(prints["sampler_T"], prints["learner_T"])]


def arm_tolerance(first: StepRecord | None) -> float:
    """The bound between a sampler and a learner of one arm, from its first step."""
    return bound(floor(initial_pairs(first)))


def untold(arm: str, records: Sequence[StepRecord], last: object) -> list[str]:
    """Notes on weights that the prints of an arm can't tell apart; none on an exact service.

    Args:
        arm: its name.
        records: its steps from the first on.
        last: what the learner made of the text after the last update, a reading if it was noted.
    """
    first = records[0] if records else None
    told_from = arm_tolerance(first)
    if first is None or told_from <= SAME:
        return []
    learners = [
        prints["learner_T"] for r in records if (prints := r.get("fingerprints")) is not None
    ]
    learners += [last] if isinstance(last, list) else []
    moves = [distance(a, b) for a, b in pairwise(learners)]
    start = (
        f"{arm}: sampler and learner read the initial weights {told_from / FACTOR:.2g} nats apart, "
        f"so prints tell weights apart from {told_from:.2g} on"
    )
    hidden = sum(not move > told_from for move in moves)
    if not hidden:
        return [start]
    return [
        f"{start}; {hidden} of {len(moves)} moves between prints are smaller, and which weights "
        "these were rests on the requests alone: the sampler's path and the updates before it"
    ]
