"""Greedy evaluation of every item, one row an item."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.cards.registration import EvaluationSpec
from harness.errors import RunError
from harness.tasks.grading import boxed_number, final_number, is_exact
from harness.training.prompts import Prompter
from harness.training.records import ItemRow
from harness.training.streams import stream_seed
from harness.training.together import together

if TYPE_CHECKING:
    import tinker

    from harness.tasks.gsm8k import Problem

UNDER_WAY = 256
"""Requests in flight at once: enough to fill a service's batch, few enough to see progress."""


async def evaluate(
    sampler: tinker.SamplingClient,
    prompter: Prompter,
    spec: EvaluationSpec,
    items: Sequence[Problem],
    after_item: Callable[[ItemRow], None],
) -> list[ItemRow]:
    """Decode every item and grade it.

    Args:
        sampler: the policy.
        prompter: renders the prompts.
        spec: decoding and answer rule.
        items: the registered items; each is decoded exactly once.
        after_item: given each row as it is done; what it raises ends the evaluation.

    Returns:
        One row an item, in the order of `items`.

    Raises:
        RunError: the service left an item without a response.
    """
    import tinker

    places = asyncio.Semaphore(UNDER_WAY)
    tokenizer = prompter.renderer.tokenizer

    async def row(item: Problem) -> ItemRow:
        params = tinker.SamplingParams(
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            stop=prompter.stop,
            # without effect at temperature 0; above it items must not share their noise
            seed=stream_seed(0, "evaluation", item.id),
        )
        async with places:
            response = await sampler.sample_async(
                prompt=prompter.tokens(item), num_samples=1, sampling_params=params
            )
        if not response.sequences:
            raise RunError(f"evaluation: item {item.id} got no response; evaluate again")
        sequence = response.sequences[0]
        text = str(tokenizer.decode(list(sequence.tokens), skip_special_tokens=True))
        graded = grade(item, text, spec, len(sequence.tokens), str(sequence.stop_reason))
        after_item(graded)
        return graded

    return await together(row(item) for item in items)


def grade(item: Problem, text: str, spec: EvaluationSpec, n_tokens: int, stop: str) -> ItemRow:
    """One item's row: the answer by the registered rule, compared exactly with the gold number."""
    answer = final_number(text) if spec.answer == "final_number" else boxed_number(text)
    return ItemRow(
        item_id=item.id,
        correct=is_exact(answer, item.gold_value),
        answer=None if answer is None else str(answer),
        gold=item.gold,
        response=text,
        n_tokens=n_tokens,
        stop=stop,
    )
