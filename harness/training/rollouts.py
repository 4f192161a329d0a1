"""Sampling rollouts: one seeded request a prompt, many requests at once, graded as they arrive."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.exceptions import TinkerCookbookError
from tinker_cookbook.rl.rollouts import do_group_rollout

from harness.cards import Arm
from harness.errors import RunError
from harness.training.prompts import Prompter
from harness.training.streams import stream_seed
from harness.training.together import together

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.types import TrajectoryGroup

    from harness.tasks.gsm8k import Problem


@dataclass(frozen=True)
class SampledGroup:
    """The graded rollouts of one prompt, and the request that they came from."""

    prompt: int
    requested: int
    seed: int
    rollouts: TrajectoryGroup


class GroupCompleter(TokenCompleter):
    """Serves all environments of one group from one request with `num_samples`.

    The environments of a group ask with the same prompt; the k-th to ask gets sample k. `where`
    names the group in errors.

    Raises:
        RunError: the service returned fewer samples than it was asked for, or a sample whose tokens
            do not have one finite log-prob each.
    """

    def __init__(
        self,
        sampler: tinker.SamplingClient,
        params: tinker.SamplingParams,
        num_samples: int,
        where: str,
    ) -> None:
        self._sampler = sampler
        self._params = params
        self._num_samples = num_samples
        self._where = where
        self._asked = 0
        self._response: asyncio.Task[tinker.SampleResponse] | None = None
        self.requested = 0

    async def __call__(
        self,
        model_input: tinker.ModelInput,
        stop: StopCondition,  # noqa: ARG002  the params hold the renderer's stop condition already
        *,
        max_tokens: int | None = None,  # noqa: ARG002  single-turn environments set no budget
    ) -> TokensWithLogprobs:
        """The next sample of the group."""
        index = self._asked
        self._asked += 1
        if self._response is None:
            self._response = asyncio.create_task(self._request(model_input))
        sequences = (await self._response).sequences
        if len(sequences) != self._num_samples:
            raise RunError(
                f"{self._where}: {len(sequences)} samples came back, {self._num_samples} were "
                "asked for; look at the service's log, then run again"
            )
        tokens, logprobs = list(sequences[index].tokens), list(sequences[index].logprobs or ())
        finite = sum(map(math.isfinite, logprobs))
        if not tokens or finite != len(tokens) or len(logprobs) != len(tokens):
            raise RunError(
                f"{self._where}, rollout {index}: {len(tokens)} tokens came back with {finite} "
                "finite log-probs, at least 1 token and a log-prob for each are needed; use a "
                "service that returns them"
            )
        return TokensWithLogprobs(tokens, logprobs, sequences[index].stop_reason)

    async def _request(self, prompt: tinker.ModelInput) -> tinker.SampleResponse:
        # counted here, where the request is made, so that gates see what was executed
        self.requested += self._num_samples
        return await self._sampler.sample_async(
            prompt=prompt, num_samples=self._num_samples, sampling_params=self._params
        )


async def sample_step(
    sampler: tinker.SamplingClient,
    prompter: Prompter,
    arm: Arm,
    step: int,
    prompts: Sequence[tuple[int, Problem]],
) -> list[SampledGroup]:
    """The rollouts of one step, all requests under way at once.

    Args:
        sampler: the snapshot to sample from.
        prompter: renders the prompts and makes the environments.
        arm: gives the group size and the seed.
        step: the step, part of each request's seed.
        prompts: (index in the train split, problem), P of them.

    Returns:
        P groups, in the order of `prompts`.

    Raises:
        RunError: what came back can't be used; names arm, step and prompt.
    """

    async def sample(index: int, problem: Problem) -> SampledGroup:
        where = f"arm {arm.name}: step {step}, train item {index}"
        seed = stream_seed(arm.seed, "rollout", arm.name, step, index)
        completer = GroupCompleter(sampler, sampling_params(prompter, seed), arm.group_size, where)
        try:
            rollouts = await do_group_rollout(prompter.group(problem, arm.group_size), completer)
        except TinkerCookbookError as error:
            raise RunError(f"{where}: the cookbook can't read a response: {error}") from error
        return SampledGroup(index, completer.requested, seed, rollouts)

    return await together(sample(index, problem) for index, problem in prompts)


def sampling_params(prompter: Prompter, seed: int) -> tinker.SamplingParams:
    """The registered sampling parameters with this seed."""
    import tinker

    return tinker.SamplingParams(
        max_tokens=prompter.training.max_tokens,
        temperature=prompter.training.temperature,
        stop=prompter.stop,
        seed=seed,
        top_k=-1,
        top_p=1.0,
    )
