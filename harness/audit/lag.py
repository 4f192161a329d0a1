"""Which weights really sampled: from the prints of samplers and learner, not from their names."""

from collections.abc import Sequence

import numpy as np

from harness.cards import Arm
from harness.fingerprints import arm_tolerance, distance
from harness.records import StepRecord


def executed_lags(records: Sequence[StepRecord]) -> list[int | None]:
    """By how many updates each step's sampler was older than the learner; None without prints.

    The sampler held the version whose learner's print is nearest to its own. Versions that are as
    near to within the arm's bound are the same weights to it, and the recorded one of them is
    believed.
    """
    prints = {
        record["step"]: record["fingerprints"] for record in records if "fingerprints" in record
    }
    bound = arm_tolerance(records[0] if records else None)
    lags: list[int | None] = []
    for record in records:
        seen = {
            version: apart
            for version, known in prints.items()
            if record["step"] in prints
            and version <= record["step"]
            and np.isfinite(
                apart := distance(known["learner_T"], record["fingerprints"]["sampler_T"])
            )
        }
        if not seen:
            lags.append(None)
            continue
        nearest = min(seen, key=lambda version: seen[version])
        recorded = record["sampled_version"]
        if seen.get(recorded, np.inf) <= seen[nearest] + bound:
            nearest = recorded
        lags.append(record["step"] - nearest)
    return lags


def expected_lag(arm: Arm, step: int) -> int:
    """The lag that the registration wants: the arm's, and less while the first steps ramp up."""
    return min(step, arm.lag)


def lag_problems(arm: Arm, records: Sequence[StepRecord]) -> list[str]:
    """Every step whose rollouts came from other weights than registered."""
    problems = []
    for record, executed in zip(records, executed_lags(records), strict=True):
        expected = expected_lag(arm, record["step"])
        if executed != expected:
            problems.append(
                f"arm {arm.name}: step {record['step']} sampled from weights {executed} updates "
                f"old, exactly {expected} registered; look at the snapshots that it kept"
            )
    return problems
