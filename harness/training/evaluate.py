"""Evaluation of every item, as the task's adapter decodes and grades it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.cards.registration import EvaluationSpec
from harness.records import Row
from harness.tasks.task import Item
from harness.training.gather import gather
from harness.training.task_adapter import AnyAdapter

if TYPE_CHECKING:
    import tinker

UNDER_WAY = 256
"""Items in flight at once: enough to fill a service's batch, few enough to see progress."""


async def evaluate(
    sampler: tinker.SamplingClient,
    adapter: AnyAdapter,
    spec: EvaluationSpec,
    items: Sequence[Item],
    after_item: Callable[[Row], None],
) -> list[Row]:
    """Decode every item and grade it.

    Args:
        sampler: the policy.
        adapter: renders the prompts and grades.
        spec: decoding and answer rule.
        items: the registered items; each is decoded exactly once, or drawn as often as registered.
        after_item: given each row as it is done; what it raises ends the evaluation.

    Returns:
        The rows of each item, in the order of `items`: one, or one a draw.

    Raises:
        RunError: the service left an item without a response.
    """
    places = asyncio.Semaphore(UNDER_WAY)

    async def rows(item: Item) -> list[Row]:
        async with places:
            found = await adapter.evaluated(sampler, spec, item)
        for row in found:
            after_item(row)
        return found

    return [row for found in await gather(*(rows(item) for item in items)) for row in found]
