"""All figures of a step, from what was executed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.cards import Arm
from harness.records import GroupRecord, tokens_of
from harness.training.datums import Batch
from harness.training.staleness_metrics import staleness_metrics
from harness.training.step_metrics import step_metrics
from harness.training.updates import Update

KEPT = "kept/"
"""Prefix of the figures of those groups that are in the update."""


def metrics_of(
    where: str, arm: Arm, groups: Sequence[GroupRecord], batch: Batch, done: Update | None
) -> dict[str, float]:
    """A step's metrics: `step_metrics` and `staleness_metrics` of all that was sampled.

    Where zero-variance groups are dropped, `updated` is 0 for a step that had nothing else, and
    `dropped_groups` counts them. The same staleness figures of what was left come under `kept/`,
    with `rollouts` (as sent), `tokens` and `reward`; of nothing `kept/rollouts` alone is reported.

    Raises:
        RunError: a figure is not a finite number.
    """
    answers = ({}, {}) if done is None else (done.forward.metrics, done.stepped.metrics or {})
    metrics = {
        **step_metrics(where, groups, *answers),
        **staleness_metrics(where, arm, groups, batch.data_D, batch.turns_D_T),
        **({} if done is None else done.metrics),
    }
    if not batch.drops:
        return metrics
    kept = [group for group in groups if not group["dropped"]]
    metrics |= {
        "updated": float(done is not None),
        "dropped_groups": float(len(groups) - len(kept)),
        f"{KEPT}rollouts": float(len(batch.trained)),
    }
    if not kept:
        return metrics
    left = [out for out in zip(batch.turns_D_T, batch.dropped_D, strict=True) if not out[1]]
    rollouts = [rollout for group in kept for rollout in group["rollouts"]]
    return metrics | {
        f"{KEPT}tokens": float(sum(len(tokens_of(rollout)) for rollout in rollouts)),
        f"{KEPT}reward": math.fsum(each["reward"] for each in rollouts) / len(rollouts),
        **staleness_metrics(where, arm, kept, batch.trained, [turn_T for turn_T, _ in left], KEPT),
    }
