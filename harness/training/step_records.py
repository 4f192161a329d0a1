"""What is stored of a step's rollouts, aligned with the datums that were sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import RunError
from harness.records import GroupRecord
from harness.training.datums import Batch
from harness.training.estimators import Estimate
from harness.training.task_adapter import AnyAdapter
from harness.training.updates import Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harness.training.rollouts import SampledGroup


def learner_logprobs(
    where: str, batch: Batch, done: Update | None, unsent: Sequence[NDArray[np.float64]]
) -> list[list[float]]:
    """The learner's log-probs of every datum's targets (D, T), before the update.

    Those of the update come from its own pass, those of dropped rollouts from `unsent`.

    Raises:
        RunError: they are not one finite number a target.
    """
    outputs = done.forward.loss_fn_outputs if done is not None else []
    sent = iter([[float(x) for x in output["logprobs"].tolist()] for output in outputs])
    left = iter([row.tolist() for row in unsent])
    rows_D_T: list[list[float]] = [next(left if out else sent, []) for out in batch.dropped_D]
    wanted, got = [turn_T.size for turn_T in batch.turns_D_T], [len(row) for row in rows_D_T]
    surplus = [len(row) for row in (*sent, *left)]
    if got != wanted or surplus:
        raise RunError(
            f"{where}: the service returned {sum(got) + sum(surplus)} learner log-probs for "
            f"{len([*filter(None, got), *surplus])} datums, {sum(wanted)} for {len(wanted)} were "
            "sent; use a service that returns one a target"
        )
    if not all(math.isfinite(x) for row in rows_D_T for x in row):
        raise RunError(
            f"{where}: a learner log-prob is not a finite number; look at the service's log, or "
            "lower the learning rate"
        )
    return rows_D_T


def group_records(
    adapter: AnyAdapter,
    groups: Sequence[SampledGroup],
    estimate: Estimate,
    batch: Batch,
    learner_D_T: Sequence[Sequence[float]],
) -> list[GroupRecord]:
    """What is stored of a step's rollouts; tokens and log-probs are of action tokens only."""
    learner = iter(batch.actions(learner_D_T))
    dropped = iter(batch.dropped_D)
    records = []
    for group, advantages_G in zip(groups, estimate.advantages_P_G, strict=True):
        trajectories_G = group.rollouts.trajectories_G
        graded_G = [adapter.graded(trajectory) for trajectory in trajectories_G]
        turns_G_K = [[turn.ac for turn in trajectory.transitions] for trajectory in trajectories_G]
        record = GroupRecord(
            prompt=group.prompt,
            requested=group.requested,
            seed=group.seed,
            rewards_G=group.rollouts.get_total_rewards(),
            advantages_G=[float(advantage) for advantage in advantages_G],
            correct_G=[graded.correct for graded in graded_G],
            format_G=[graded.format for graded in graded_G],
            stop_G=[turns_K[-1].stop_reason for turns_K in turns_G_K],
            tokens_G_T=[[t for turn in turns_K for t in turn.tokens] for turns_K in turns_G_K],
            logprobs_G_T=[[q for turn in turns_K for q in turn.logprobs] for turns_K in turns_G_K],
            learner_logprobs_G_T=[next(learner) for _ in turns_G_K],
        )
        if adapter.multi_turn:
            record["turn_lengths_G_K"] = [
                [len(turn.tokens) for turn in turns_K] for turns_K in turns_G_K
            ]
            record["episodes_G"] = [dict(graded.figures or {}) for graded in graded_G]
            record["curated_G"] = [list(graded.curated or ()) for graded in graded_G]
        if batch.drops:
            left_out_G = [next(dropped) for _ in turns_G_K]
            record["dropped"] = all(left_out_G)
        records.append(record)
    return records
