"""Evidence for `restoration`: fresh clients of both arms, before and after one identical step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from harness.audit.probes.arms import loss_datum, throw_away_arms
from harness.audit.restoration import ClientState, RestorationEvidence, equal_starts
from harness.cards import Experiment
from harness.tasks.task import Task
from harness.training.checkpoints import delete_checkpoints, open_arm
from harness.training.context import ArmContext, ArmState
from harness.training.fixed_text import forward
from harness.training.gather import gather
from harness.training.loop import adam_params
from harness.training.task_adapter import AnyAdapter

if TYPE_CHECKING:
    import tinker

PROBLEMS = 4
LONGEST = 192


async def collect(
    service: tinker.ServiceClient, adapter: AnyAdapter, experiment: Experiment, task: Task
) -> RestorationEvidence:
    """Open each arm as the run opens it, and give all arms of a group one identical step."""
    rows = [adapter.text(item)[:LONGEST] for item in task.train[:PROBLEMS]]
    with throw_away_arms(service, adapter, experiment, task) as contexts:
        return RestorationEvidence(
            groups=[
                await _group([contexts[arm.name] for arm in group.arms], rows)
                for group in equal_starts(experiment)
            ]
        )


async def _group(contexts: list[ArmContext], rows: list[list[int]]) -> list[ClientState]:
    # the last is a second client of the first arm: what differs between them, the service makes
    opened = await asyncio.gather(*(open_arm(context) for context in [*contexts, contexts[0]]))
    before = await asyncio.gather(*(forward(state.client, rows) for state in opened))
    again = await asyncio.gather(*(forward(state.client, rows) for state in opened))
    states = opened[:-1]
    # the same datums and the same optimizer for all, whatever each would have sent
    data = [
        loss_datum(
            row, logprobs.tolist(), np.full(len(row) - 1, 1.0 if index % 2 else -1.0).tolist()
        )
        for index, (row, logprobs) in enumerate(zip(rows, before[0], strict=True))
    ]
    adam = adam_params(contexts[0])
    after = await asyncio.gather(*(identical_step(state, data, adam, rows) for state in states))
    infos = await asyncio.gather(*(state.client.get_info_async() for state in states))
    pairs = zip([*contexts, contexts[0]], opened, strict=True)
    await gather(
        *(delete_checkpoints(context.service, context.entry, state) for context, state in pairs)
    )
    return [
        ClientState(
            arm=context.arm.name,
            sent=sent(context),
            reported_rank=info.lora_rank,
            before_T=np.concatenate(old).tolist(),
            after_T=np.concatenate(new).tolist(),
            again=[
                np.concatenate(row).tolist()
                for row in ([repeat, before[-1], again[-1]] if old is before[0] else [repeat])
            ],
        )
        for context, info, old, repeat, new in zip(
            contexts, infos, before[:-1], again[:-1], after, strict=True
        )
    ]


async def identical_step(
    state: ArmState, data: list[tinker.Datum], adam: tinker.AdamParams, rows: list[list[int]]
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """One step on given datums, and what the learner makes of the rows after it."""
    update = await state.client.forward_backward_async(data, "importance_sampling")
    optimizer = await state.client.optim_step_async(adam)
    await update.result_async()
    await optimizer.result_async()
    return await forward(state.client, rows)


def sent(context: ArmContext) -> dict[str, float]:
    """What an arm sends with its creation and with each step, in the card's keys."""
    adam = adam_params(context)
    return {
        "beta1": adam.beta1,
        "beta2": adam.beta2,
        "eps": adam.eps,
        "learning_rate": adam.learning_rate,
        "weight_decay": adam.weight_decay,
        "grad_clip_norm": adam.grad_clip_norm,
        "init_seed": float(context.arm.seed),
        "lora_rank": float(context.lora_rank),
    }
