"""Seeded requests to a sampler, as the cookbook's completers."""

from __future__ import annotations

import asyncio
import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from harness.errors import RunError
from harness.training.streams import stream_seed

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class Sampling:
    """A snapshot to sample from, and how: `max_tokens` a reply, ended by `stop`."""

    sampler: tinker.SamplingClient
    max_tokens: int
    temperature: float
    stop: list[str] | list[int]

    def params(self, seed: int) -> tinker.SamplingParams:
        """The parameters of one request; top_p and top_k leave the policy whole."""
        import tinker

        return tinker.SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            stop=self.stop,
            seed=seed,
            top_k=-1,
            top_p=1.0,
        )


@dataclass
class Reply(TokensWithLogprobs):
    """What came back, and the seed of the request that it answers."""

    _: KW_ONLY
    seed: int


class GroupCompleter(TokenCompleter):
    """Serves all environments of one group from one request with `num_samples`.

    The environments of a group ask with the same prompt; the k-th to ask gets sample k. So all
    rollouts of a group of single replies share one request and its seed. `where` names the group in
    errors.

    Raises:
        RunError: the service returned fewer samples than it was asked for, or a sample whose tokens
            do not have one finite log-prob each.
    """

    def __init__(self, sampling: Sampling, seed: int, num_samples: int, where: str) -> None:
        self._sampling = sampling
        self._seed = seed
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
    ) -> Reply:
        """The next sample of the group."""
        index = self._asked
        self._asked += 1
        if self._response is None:
            self._response = asyncio.create_task(self._request(model_input))
        response = await self._response
        which = f"{self._where}, rollout {index}"
        return checked(response, self._num_samples, index, self._seed, self._where, which)

    async def _request(self, prompt: tinker.ModelInput) -> tinker.SampleResponse:
        # counted here, where the request is made, so that gates see what was executed
        self.requested += self._num_samples
        return await self._sampling.sampler.sample_async(
            prompt=prompt,
            num_samples=self._num_samples,
            sampling_params=self._sampling.params(self._seed),
        )


class TurnCompleter(TokenCompleter):
    """Serves one episode, a request a turn; turn k has a seed of its own in the stream of `seed`.

    Raises:
        RunError: a turn came back without tokens, or without one finite log-prob each.
    """

    def __init__(self, sampling: Sampling, seed: int, rollout: int, where: str) -> None:
        self._sampling = sampling
        self._seed = seed
        self._rollout = rollout
        self._where = where
        self.turns = 0

    async def __call__(
        self,
        model_input: tinker.ModelInput,
        stop: StopCondition,  # noqa: ARG002  the params hold the renderer's stop condition already
        *,
        max_tokens: int | None = None,  # noqa: ARG002  the environment ends what grows too long
    ) -> Reply:
        """The reply of the next turn."""
        turn = self.turns
        self.turns += 1
        seed = stream_seed(self._seed, self._rollout, turn)
        response = await self._sampling.sampler.sample_async(
            prompt=model_input,
            num_samples=1,
            sampling_params=self._sampling.params(seed),
        )
        which = f"{self._where}, rollout {self._rollout}, turn {turn}"
        return checked(response, 1, 0, seed, self._where, which)


def checked(
    response: tinker.SampleResponse, wanted: int, index: int, seed: int, where: str, which: str
) -> Reply:
    """One sample of a response to the request with this seed, if it is whole.

    Raises:
        RunError: other than `wanted` samples came back, or this one has no token, or not one
            finite log-prob a token.
    """
    sequences = response.sequences
    if len(sequences) != wanted:
        raise RunError(
            f"{where}: {len(sequences)} samples came back, {wanted} were asked for; look at the "
            "service's log, then run again"
        )
    tokens, logprobs = list(sequences[index].tokens), list(sequences[index].logprobs or ())
    finite = sum(map(math.isfinite, logprobs))
    if not tokens or finite != len(tokens) or len(logprobs) != len(tokens):
        raise RunError(
            f"{which}: {len(tokens)} tokens came back with {finite} finite log-probs, at "
            "least 1 token and a log-prob for each are needed; use a service that returns them"
        )
    return Reply(tokens, logprobs, sequences[index].stop_reason, seed=seed)
