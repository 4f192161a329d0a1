"""Sampling rollouts: seeded requests, all of a step under way at once, graded as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinker_cookbook.exceptions import TinkerCookbookError
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import TrajectoryGroup

from harness.cards import Arm
from harness.errors import RunError
from harness.tasks.task import Item
from harness.training.completers import GroupCompleter, Sampling, TurnCompleter
from harness.training.gather import gather
from harness.training.streams import stream_seed
from harness.training.task_adapter import AnyAdapter

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.types import EnvGroupBuilder


@dataclass(frozen=True)
class SampledGroup:
    """The graded rollouts of one prompt, and how many were asked for."""

    prompt: int
    requested: int
    rollouts: TrajectoryGroup


async def sample_step(
    sampler: tinker.SamplingClient,
    adapter: AnyAdapter,
    arm: Arm,
    step: int,
    prompts: Sequence[tuple[int, Item]],
) -> list[SampledGroup]:
    """The rollouts of one step, all of them under way at once.

    A group of one-reply episodes takes one request; of several turns, each turn of each rollout
    takes one. All come from `sampler`, whatever the learner does meanwhile.

    Args:
        sampler: the snapshot to sample from.
        adapter: renders the prompts and makes the environments.
        arm: gives the group size and the seed.
        step: the step, part of each request's seed.
        prompts: (index in the train split, item), P of them.

    Returns:
        P groups, in the order of `prompts`.

    Raises:
        RunError: what came back can't be used; names arm, step and prompt.
    """
    sampling = training_sampling(sampler, adapter)

    async def sample(index: int, item: Item) -> SampledGroup:
        where = f"arm {arm.name}: step {step}, train item {index}"
        seed = stream_seed(arm.seed, "rollout", arm.name, step, index)
        builder = adapter.group(item, arm.group_size)
        if adapter.multi_turn:
            rollouts = await sample_episodes(builder, sampling, seed, where)
            return SampledGroup(index, arm.group_size, rollouts)
        completer = GroupCompleter(sampling, seed, arm.group_size, where)
        try:
            rollouts = await do_group_rollout(builder, completer)
        except TinkerCookbookError as error:
            raise unreadable(where, error) from error
        return SampledGroup(index, completer.requested, rollouts)

    return list(await gather(*(sample(index, item) for index, item in prompts)))


async def sample_episodes(
    builder: EnvGroupBuilder, sampling: Sampling, seed: int, where: str
) -> TrajectoryGroup:
    """Episodes of several turns, all at once, each with random streams of its own.

    Raises:
        RunError: what came back can't be used, or a prompt left no room for a reply.
    """
    envs = await builder.make_envs()
    completers = [TurnCompleter(sampling, seed, g, where) for g in range(len(envs))]
    try:
        trajectories = list(
            await gather(
                *(do_single_rollout(c, env) for c, env in zip(completers, envs, strict=True))
            )
        )
        graded = await builder.compute_group_rewards(trajectories, envs)
    except TinkerCookbookError as error:
        raise unreadable(where, error) from error
    finally:
        await builder.cleanup()
    silent = sum(completer.turns == 0 for completer in completers)
    if silent:
        raise RunError(
            f"{where}: {silent} episodes have no turn, since no reply fits behind the prompt; "
            "raise max_seq_len or lower max_tokens"
        )
    return TrajectoryGroup(
        trajectories, [reward for reward, _ in graded], [metrics for _, metrics in graded]
    )


def unreadable(where: str, error: TinkerCookbookError) -> RunError:
    """What is said of a response that the cookbook can't read."""
    return RunError(f"{where}: the cookbook can't read a response: {error}")


def training_sampling(sampler: tinker.SamplingClient, adapter: AnyAdapter) -> Sampling:
    """The registered way to sample while training."""
    training = adapter.training
    return Sampling(sampler, training.max_tokens, training.temperature, adapter.stop)
