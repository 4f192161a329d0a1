"""A sampler that plays scripted sessions, and a search task for it."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tinker
from service_doubles import Request, ScriptedService, sequence

from harness.cards import Experiment, load_experiment
from harness.tasks.sec_search import SearchTask
from harness.training.searches import SearchAdapter, search_adapter
from harness.training.streams import stream_seed

CARD = Path(__file__).parents[2] / "experiments/cards/tailrl_lag8_sec_search_4b.json"

Reply = str | tuple[int, ...]
"""A text that gets the stop token, or tokens as they are: without it they were cut off."""


def search_experiment() -> Experiment:
    """The search experiment at embedded scale."""
    return load_experiment(CARD, "embedded")


def small_search() -> Experiment:
    """TailRL at lag 0 and lag 1, 5 steps of 4 groups of 3."""
    whole = search_experiment()
    shape = {"group_size": 3, "groups_per_batch": 4, "steps": 5}
    arms = [
        arm.model_copy(
            update={
                "lag": min(1, arm.lag),
                "schedule": arm.schedule and arm.schedule.model_copy(update=shape),
            }
        )
        for arm in whole.registration.arms
        if arm.estimator == "tailrl"
    ]
    registration = whole.registration.model_copy(update={"arms": arms})
    # the name that the scripted service gives its model
    card = whole.card.model_copy(update={"base_model": "harness/nano-qwen3"})
    return dataclasses.replace(whole, card=card, registration=registration)


def compact_adapter(experiment: Experiment, task: SearchTask) -> SearchAdapter:
    """The adapter of the compact syntax on the search model's tokenizer."""
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    from harness.embedded import SEARCH_MODEL_DIR

    return search_adapter(get_tokenizer(str(SEARCH_MODEL_DIR)), experiment, task)


def seed_of(group_seed: int, rollout: int, turn: int) -> int:
    """The seed with which a turn is registered to be sampled."""
    return stream_seed(group_seed, rollout, turn)


class SearchService(ScriptedService):
    """A scripted service whose replies are calls of the compact syntax, one a turn."""

    CALLS = ("s1", "s2", "s3", "cab", "cabc", "s1a", "f", "f", "zz")

    def by_hash(self, request: Request) -> list[str]:
        """A call a sample, by what was asked and the weights."""
        key = f"{request.weights!r}/{request.prompt}/{request.params.seed}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return [self.CALLS[(digest[k] + k) % len(self.CALLS)] for k in range(request.num_samples)]

    def scored(self, text: str) -> tinker.SampledSequence:
        """Its symbols and the stop token, so likely that equal replies are no surprise."""
        encode = self.tokenizer.encode
        tokens = [t for c in text for t in encode(c, add_special_tokens=False)]
        tokens.append(self.stop)
        return sequence(tokens, [-(1 + token % 7) / 800 for token in tokens])


@dataclass
class SessionSampler:
    """Doubles `tinker.SamplingClient`: a reply for each seed, `otherwise` for the rest.

    Log-probs tell each token of each request apart, exactly in single precision.
    """

    adapter: SearchAdapter
    replies: Mapping[int, Reply] = field(default_factory=dict)
    otherwise: Reply = "f"
    asked: list[tuple[int, list[int], int]] = field(default_factory=list)
    said: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)
    prompts: dict[int, list[int]] = field(default_factory=dict)
    under_way: int = 0
    most_under_way: int = 0

    async def sample_async(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
    ) -> tinker.SampleResponse:
        """The reply for the request's seed."""
        seed = int(sampling_params.seed or 0)
        number = len(self.asked)
        self.asked.append((seed, prompt.to_ints(), num_samples))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        tokens, reason = self._tokens(self.replies.get(seed, self.otherwise))
        logprobs = [-(1 + number % 64) - place / 64 for place in range(len(tokens))]
        self.said[seed], self.prompts[seed] = (tokens, logprobs), prompt.to_ints()
        return tinker.SampleResponse(sequences=[sequence(tokens, logprobs, reason)])

    def _tokens(self, reply: Reply) -> tuple[list[int], str]:
        stop = int(self.adapter.stop[0])
        if isinstance(reply, str):
            tokenizer = self.adapter.renderer.tokenizer
            written = [t for c in reply for t in tokenizer.encode(c, add_special_tokens=False)]
            return [*written, stop], "stop"
        return list(reply), "stop" if reply[-1] == stop else "length"


def scripted(
    scripts: Mapping[int, Sequence[Sequence[Reply]]],
) -> dict[int, Reply]:
    """Replies by seed, from the sessions of each group by its seed."""
    return {
        seed_of(group_seed, rollout, turn): reply
        for group_seed, sessions in scripts.items()
        for rollout, session in enumerate(sessions)
        for turn, reply in enumerate(session)
    }
