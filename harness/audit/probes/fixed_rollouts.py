"""Rollouts that are the same on every machine, for comparing computations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.training.streams import stream_seed

if TYPE_CHECKING:
    from tinker_cookbook.rl.types import TrajectoryGroup

    from harness.audit.probes.small_model import SmallModel

VOCABULARY = 61
STOP_TOKEN = VOCABULARY - 1
LONGEST_RESPONSE = 24
NOISE = 0.2

# all that the cookbook's math environment gives
REWARDS = (1.0, 0.9, 0.0, -0.1)


def fixed_groups(
    rewards_P_G: Sequence[Sequence[float]], model: SmallModel, seed: int
) -> list[TrajectoryGroup]:
    """One group of rollouts for each row of rewards.

    Prompts come in several chunks, as renderers make them; responses have 1 to LONGEST_RESPONSE
    tokens and end with the stop token, two in three of them. Behaviour log-probs are the model's
    with some noise, so that ratios are near 1 and none is 1.
    """
    import tinker
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "fixed_rollouts")))

    def tokens(count: int) -> list[int]:
        return [int(token) for token in generator.integers(0, STOP_TOKEN, size=count)]

    def trajectory(prompt: tinker.ModelInput, reward: float) -> Trajectory:
        stopped = generator.random() < 2 / 3
        response = tokens(int(generator.integers(0, LONGEST_RESPONSE)))
        response = [*response, STOP_TOKEN] if stopped else [*response, *tokens(1)]
        full = [*prompt.to_ints(), *response]
        values = model.logprobs([full[:-1]], [full[1:]]).detach().numpy()[-len(response) :]
        logprobs = (values + generator.normal(0.0, NOISE, size=len(response))).tolist()
        action = TokensWithLogprobs(response, logprobs, "stop" if stopped else "length")
        empty = tinker.ModelInput.from_ints([])
        return Trajectory([Transition(prompt, action, reward, True)], empty)

    groups = []
    for rewards_G in rewards_P_G:
        chunks = [tinker.EncodedTextChunk(tokens=tokens(n)) for n in (1, 5, 2)]
        prompt = tinker.ModelInput(chunks=list(chunks))
        groups.append(
            TrajectoryGroup(
                [trajectory(prompt, reward) for reward in rewards_G],
                [0.0] * len(rewards_G),
                [{} for _ in rewards_G],
            )
        )
    return groups


def grouped_rewards(groups: int, size: int, seed: int) -> list[list[float]]:
    """Rewards of every kind, the first two groups all equal (all right, all without a box)."""
    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "fixed_rewards")))
    mixed = generator.choice(REWARDS, size=(groups - 2, size)).tolist()
    return [[REWARDS[0]] * size, [REWARDS[-1]] * size, *mixed]


def patterns(
    prompts: int, size: int, seed: int, values: Sequence[float] = REWARDS
) -> dict[str, list[list[float]]]:
    """Rewards (P, G) of groups of a size: the cases in which a baseline can go wrong.

    `values` are those that a random reward is drawn from.
    """
    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "reward_patterns")))
    one_right = [[0.0] * size for _ in range(prompts)]
    one_right[0][0] = 1.0
    return {
        "all equal": [[1.0] * size for _ in range(prompts)],
        "one right": one_right,
        "random": generator.choice(values, size=(prompts, size)).tolist(),
    }
