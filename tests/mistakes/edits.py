"""What mistakes in the harness's own code are made of: edits that take pytest's monkeypatch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tinker
from tinker_cookbook.rl.types import TrajectoryGroup

from harness.training import loop
from harness.training.completers import Sampling
from harness.training.estimators import Estimate, Estimator
from mistakes.mistake import Edit

Row = np.ndarray[Any, Any]


def method(owner: Any, name: str, wrapper: Callable[..., Any]) -> Edit:
    """`wrapper(original, ...)` in the place of a function or method."""

    def edit(monkeypatch: Any) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *these: wrapper(original, *these))

    return edit


def datums_with(**changes: Callable[[Row], Row]) -> Edit:
    """`logprobs` or `advantages` (T) of every datum are changed before they are sent."""

    def changed(datum: tinker.Datum) -> tinker.Datum:
        inputs = dict(datum.loss_fn_inputs)
        for key, change in changes.items():
            row = change(np.asarray(inputs[key].tolist()))
            inputs[key] = tinker.TensorData.from_numpy(row.astype(np.float32))
        return dataclasses.replace(datum, loss_fn_inputs=inputs)

    return sent_with(lambda batches, arm: ([[changed(d) for d in b] for b in batches], arm))


def sent_with(change: Callable[[Any, Any], tuple[Any, Any]]) -> Edit:
    """The update gets other batches, or another arm's loss."""

    async def updated(original: Any, client: Any, batches: Any, arm: Any, *more: Any) -> Any:
        return await original(client, *change(batches, arm), *more)

    return method(loop, "update", updated)


def updated_with(change: Callable[[Any, tinker.AdamParams, int], dict[str, float]]) -> Edit:
    """The update gets other Adam parameters, by arm, those registered and the update's number."""

    def edit(monkeypatch: Any) -> None:
        counts: dict[str, int] = {}

        async def updated(original: Any, client: Any, batches: Any, arm: Any, *more: Any) -> Any:
            number = counts[arm.name] = counts.get(arm.name, -1) + 1
            by, adam = more
            other = adam.model_copy(update=change(arm, adam, number))
            return await original(client, batches, arm, by, other)

        method(loop, "update", updated)(monkeypatch)

    return edit


def advantages_as(change: Callable[[list[Row], Any], list[Row]]) -> Edit:
    """What the estimator returns is worked over, given the rewards."""

    def estimate(original: Any, self: Any, problems: Any, rewards_P_G: Any, *more: Any) -> Estimate:
        found = original(self, problems, rewards_P_G, *more)
        changed = change(found.advantages_P_G, rewards_P_G)
        return dataclasses.replace(found, advantages_P_G=changed)

    return method(Estimator, "estimate", estimate)


def rewards_as(change: Callable[[list[float]], list[float]]) -> Edit:
    """The rewards of a group are changed where they are read."""
    return method(TrajectoryGroup, "get_total_rewards", lambda original, g: change(original(g)))


def sampled_with(**settings: Any) -> Edit:
    """Rollouts are sampled with other settings."""
    return method(
        Sampling,
        "params",
        lambda original, *these: original(*these).model_copy(update=settings),
    )


def prompts_from(place: Callable[[Any, int], int]) -> Edit:
    """A step draws the stretch of the order that begins at this place."""

    def drawn(_original: Any, context: Any, step: int) -> list[Any]:
        start, n = place(context.arm, step), context.arm.groups_per_batch
        return [(i, context.train[i]) for i in context.order[start : start + n]]

    return method(loop, "step_prompts", drawn)


def other_question(original: Any, self: Any, problem: Any, *more: Any) -> Any:
    """The environment asks something else than the item's question."""
    return original(self, dataclasses.replace(problem, question=f"{problem.question} Hm."), *more)


def other_gold(original: Any, self: Any, problem: Any, *more: Any) -> Any:
    """The environment compares with another answer than the item's."""
    return original(self, dataclasses.replace(problem, gold="1"), *more)


async def twice(original: Any, *these: Any) -> Any:
    """The batch is applied twice."""
    await original(*these)
    return await original(*these)


def whitened(rows: list[Row], _rewards: Any) -> list[Row]:
    """Advantages of mean 0 and deviation 1 over the batch."""
    flat = np.concatenate(rows)
    return [(row - flat.mean()) / (flat.std() + 1e-6) for row in rows]


def ppo(batches: Any, arm: Any) -> tuple[Any, Any]:
    """The GS1 arm trains with a clipped loss."""
    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    clipped = dataclasses.replace(arm, loss="ppo", loss_config=bounds)
    return batches, clipped if arm.estimator == "gs1" else arm


def one_early(row: Row) -> Row:
    """Shifted by one token."""
    return np.roll(row, -1)


def drawn_with(change: Callable[[Any, list[Any]], list[Any]]) -> Edit:
    """A step draws other prompts, given those registered."""

    def drawn(original: Any, context: Any, step: int) -> list[Any]:
        return change(context, original(context, step))

    return method(loop, "step_prompts", drawn)
