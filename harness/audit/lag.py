"""Which weights really sampled, by the fingerprints of samplers and learner."""

from collections.abc import Sequence

import numpy as np

from harness.cards import Arm
from harness.fingerprints import arm_tolerance, distance
from harness.records import StepRecord


def executed_lags(records: Sequence[StepRecord]) -> list[int | None]:
    """How many updates each step's sampler was behind the learner; None without fingerprints.

    The sampler held the version whose learner's fingerprint is nearest to its own. Versions that
    are as near to within the arm's tolerance are the same weights to it, and the recorded one of
    them is believed.
    """
    known = {r["step"]: r["fingerprints"] for r in records if "fingerprints" in r}
    tolerance = arm_tolerance(records[0] if records else None)
    lags: list[int | None] = []
    for record in records:
        seen = {
            version: apart
            for version, by in known.items()
            if record["step"] in known
            and version <= record["step"]
            and np.isfinite(apart := distance(by["learner_T"], record["fingerprints"]["sampler_T"]))
        }
        if not seen:
            lags.append(None)
            continue
        nearest = min(seen, key=lambda version: seen[version])
        recorded = record["sampled_version"]
        if seen.get(recorded, np.inf) <= seen[nearest] + tolerance:
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
