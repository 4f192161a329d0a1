"""Fingerprints: what a sampler and the learner make of one fixed text, to tell their weights apart.

A sampler's name says which weights it should hold. Its log-probs of a text say which it does hold:
those of the version whose learner gave the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.records import Fingerprints
from harness.training.fixed_text import forward
from harness.training.service import says_no

if TYPE_CHECKING:
    import tinker

LENGTH = 32
"""Log-probs of a fingerprint."""


async def take_fingerprints(
    sampler: tinker.SamplingClient,
    client: tinker.TrainingClient,
    tokens: Sequence[int],
) -> Fingerprints | None:
    """The log-probs of the text's tokens but the first, by the sampler and by the learner.

    None if the sampler does not return the log-probs of a prompt.
    """
    sampled_T, learned_T = await asyncio.gather(
        sampler_fingerprint(sampler, tokens), learner_fingerprint(client, tokens)
    )
    return None if sampled_T is None else Fingerprints(sampler_T=sampled_T, learner_T=learned_T)


async def learner_fingerprint(client: tinker.TrainingClient, tokens: Sequence[int]) -> list[float]:
    """The learner's log-probs of the text's tokens but the first."""
    (learned_T,) = await forward(client, [list(tokens[: LENGTH + 1])])
    found: list[float] = learned_T.tolist()
    return found


async def sampler_fingerprint(
    sampler: tinker.SamplingClient, tokens: Sequence[int]
) -> list[float] | None:
    """The sampler's, None if the service does not return a log-prob for each of these tokens."""
    import tinker

    text = list(tokens[: LENGTH + 1])
    try:
        sampled = await sampler.compute_logprobs_async(tinker.ModelInput.from_ints(text))
    except Exception as error:
        if not says_no(error):
            raise
        return None
    # services differ in whether the first token has a place
    sampled_T = [float(x) for x in sampled[-(len(text) - 1) :] if x is not None]
    return sampled_T if len(sampled_T) == len(text) - 1 else None
