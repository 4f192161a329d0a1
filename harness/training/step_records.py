"""What is stored of a step's rollouts, aligned with the datums that were sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import RunError
from harness.records import GroupRecord, Rollout, Turn
from harness.training.completers import Reply
from harness.training.datums import Batch
from harness.training.estimators import Estimate
from harness.training.task_adapter import AnyAdapter
from harness.training.updates import Update

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.types import Trajectory

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
    learner = iter(batch.by_turn(learner_D_T))
    dropped = iter(batch.dropped_D)
    records = []
    for group, advantages_G in zip(groups, estimate.advantages_P_G, strict=True):
        rows = zip(
            group.rollouts.trajectories_G,
            group.rollouts.get_total_rewards(),
            advantages_G.tolist(),
            strict=True,
        )
        rollouts = [
            rollout_record(adapter, trajectory, reward, advantage, next(learner))
            for trajectory, reward, advantage in rows
        ]
        left_out_G = [next(dropped) for _ in rollouts]
        records.append(
            GroupRecord(
                prompt=group.prompt,
                requested=group.requested,
                dropped=all(left_out_G),
                rollouts=rollouts,
            )
        )
    return records


def rollout_record(
    adapter: AnyAdapter,
    trajectory: Trajectory,
    reward: float,
    advantage: float,
    learner_K_T: Sequence[list[float]],
) -> Rollout:
    """What is stored of one episode, with the learner's log-probs of its turns (K, T)."""
    graded = adapter.graded(trajectory)
    return Rollout(
        reward=reward,
        advantage=advantage,
        scores=dict(graded.scores),
        answer=graded.answer,
        turns=[
            turn_record(transition.ac, learner_T)
            for transition, learner_T in zip(trajectory.transitions, learner_K_T, strict=True)
        ],
    )


def turn_record(reply: TokensWithLogprobs, learner_T: list[float]) -> Turn:
    """What is stored of one turn.

    Raises:
        RunError: an environment put another reply in the place of what was sampled.
    """
    if not isinstance(reply, Reply):
        raise RunError(
            "a turn holds a reply that was not sampled for it; leave the replies of a trajectory "
            "as they came"
        )
    return Turn(
        seed=reply.seed,
        tokens_T=reply.tokens,
        logprobs_T=reply.logprobs,
        learner_logprobs_T=learner_T,
        stop=reply.stop_reason,
    )
