"""Evaluation of every item, greedy or by several samples, one row an item."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.cards.registration import EvaluationSpec
from harness.errors import RunError
from harness.records import ItemRow
from harness.tasks.grading import boxed_number, final_number, is_exact
from harness.training.prompts import Prompter
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
                prompt=prompter.tokens(item), num_samples=spec.samples, sampling_params=params
            )
        if len(response.sequences) != spec.samples:
            raise RunError(
                f"evaluation: item {item.id} got {len(response.sequences) or 'no'} response(s), "
                f"{spec.samples} were asked for; evaluate again"
            )
        rows = [
            grade(
                item,
                str(tokenizer.decode(list(sequence.tokens), skip_special_tokens=True)),
                spec,
                len(sequence.tokens),
                str(sequence.stop_reason),
            )
            for sequence in response.sequences
        ]
        graded = rows[0] if spec.samples == 1 else sampled_row(rows)
        after_item(graded)
        return graded

    return await together(row(item) for item in items)


def sampled_row(rows: Sequence[ItemRow]) -> ItemRow:
    """One row of an item's several samples."""
    row = rows[0].copy()
    row["n_tokens"] = sum(each["n_tokens"] for each in rows)
    row["correct_S"] = [each["correct"] for each in rows]
    return row


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
