"""Evidence that an interrupted arm goes on: the live arm beside one opened from its checkpoint."""

from __future__ import annotations

import asyncio

import numpy as np

from harness.audit.probes.arms import loss_datum
from harness.audit.probes.restoration import identical_step
from harness.audit.resumed import ResumedArm
from harness.training.checkpoints import open_arm, save_checkpoint
from harness.training.context import ArmContext, ArmState
from harness.training.fingerprints import sampler_fingerprint
from harness.training.fixed_text import forward
from harness.training.loop import adam_params


async def resumed_arm(context: ArmContext, state: ArmState, text: list[int]) -> ResumedArm:
    """Save the arm and open it again as the loop does, then compare; both are moved by a step."""
    await save_checkpoint(context, state)
    again = await open_arm(context)
    both = (state, again)
    learner = [await learner_reading(each, text) for each in both]
    repeated = [
        (row, await learner_reading(each, text)) for row, each in zip(learner, both, strict=True)
    ]
    # only what lags samples from weights that the learner no longer has
    samplers = [each.snapshots.sampler(state.version)[1] for each in both if context.arm.lag]
    sampled = await asyncio.gather(*(sampler_fingerprint(each, text) for each in samplers))
    sampled_again = await asyncio.gather(*(sampler_fingerprint(each, text) for each in samplers))
    pairs = zip(sampled, sampled_again, strict=True)
    repeated += [(a, b) for a, b in pairs if a is not None and b is not None]
    data = [loss_datum(text, learner[0], np.ones(len(text) - 1).tolist())]
    adam = adam_params(context)
    stepped = [(await identical_step(each, data, adam, [text]))[0] for each in both]
    return ResumedArm(
        arm=context.arm.name,
        version=state.version,
        resumed_version=again.version,
        learner=(learner[0], learner[1]),
        stepped=(stepped[0].tolist(), stepped[1].tolist()),
        samplers=[row or [] for row in sampled],
        repeated=repeated,
    )


async def learner_reading(state: ArmState, text: list[int]) -> list[float]:
    """The learner's log-probs of all of a text."""
    found: list[float] = (await forward(state.client, [text]))[0].tolist()
    return found
