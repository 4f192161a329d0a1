"""Which weights a service's log-probs can tell apart, and which they can't."""

from collections.abc import Sequence
from itertools import pairwise

from harness.fingerprints import FACTOR, SAME, arm_tolerance, distance
from harness.records import StepRecord


def indistinct_weights(arm: str, records: Sequence[StepRecord], last: object) -> list[str]:
    """Notes on weights that the fingerprints of an arm can't tell apart; none on an exact service.

    Args:
        arm: its name.
        records: its steps from the first on.
        last: what the learner made of the text after the last update, a reading if it was noted.
    """
    first = records[0] if records else None
    least = arm_tolerance(first)
    if first is None or least <= SAME:
        return []
    learners = [found["learner_T"] for r in records if (found := r.get("fingerprints")) is not None]
    learners += [last] if isinstance(last, list) else []
    moves = [distance(a, b) for a, b in pairwise(learners)]
    start = (
        f"{arm}: sampler and learner read the initial weights {least / FACTOR:.2g} nats apart, "
        f"so fingerprints tell weights apart from {least:.2g} on"
    )
    hidden = sum(not move > least for move in moves)
    if not hidden:
        return [start]
    return [
        f"{start}; {hidden} of {len(moves)} moves between fingerprints are smaller, and which "
        "weights these were rests on the requests alone: the sampler's path and the updates "
        "before it"
    ]
