"""Which weights really sampled: from the prints of samplers and learner, not from their names."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.cards import Arm
from harness.records import StepRecord

SAME = 1e-5
"""Log-probs of one text under the same weights, cached or not, differ by about 1e-6 in float32."""


def executed_lags(records: Sequence[StepRecord]) -> list[int | None]:
    """By how many updates each step's sampler was older than the learner; None without prints.

    The sampler held the version whose learner's print is nearest to its own. Versions that are as
    near to within `SAME` are the same weights to it, and the recorded one of them is believed.
    """
    learners = {record["step"]: _print(record, "learner_T") for record in records}
    lags: list[int | None] = []
    for record in records:
        sampler = _print(record, "sampler_T")
        seen = {
            version: float(np.abs(learner - sampler).max())
            for version, learner in learners.items()
            if learner is not None and sampler is not None and version <= record["step"]
        }
        if not seen:
            lags.append(None)
            continue
        nearest = min(seen, key=lambda version: seen[version])
        recorded = record["sampled_version"]
        if seen.get(recorded, np.inf) <= seen[nearest] + SAME:
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


def _print(
    record: StepRecord, which: Literal["sampler_T", "learner_T"]
) -> NDArray[np.float64] | None:
    prints = record.get("prints")
    return None if prints is None else np.asarray(prints[which], dtype=np.float64)
