"""From graded rollouts and advantages to the datums that are sent, by the cookbook's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import RunError
from harness.methods.staleness import is_zero_variance

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup

NO_TURN = -1


@dataclass(frozen=True)
class Batch:
    """A step's datums, one a rollout, group-major (D).

    `turns_D_T` has the turn of each target, -1 where it was not sampled. `drops` says whether
    zero-variance groups are dropped, `dropped_D` which rollouts are.
    """

    data_D: list[tinker.Datum]
    turns_D_T: list[NDArray[np.int64]]
    drops: bool
    dropped_D: list[bool]

    @property
    def trained(self) -> list[tinker.Datum]:
        """The datums of the update."""
        return [datum for datum, out in zip(self.data_D, self.dropped_D, strict=True) if not out]

    def dropped_rows(self) -> list[list[int]]:
        """All tokens of each rollout that is not in the update."""
        return [tokens_of(d) for d, out in zip(self.data_D, self.dropped_D, strict=True) if out]

    def by_turn(self, values_D_T: Sequence[Sequence[float]]) -> list[list[list[float]]]:
        """Of values for all targets, those of the action tokens, turn by turn (D, K, T)."""
        return [
            [
                np.asarray(values_T, dtype=np.float64)[turn_T == turn].tolist()
                for turn in range(turn_T.max(initial=NO_TURN) + 1)
            ]
            for values_T, turn_T in zip(values_D_T, self.turns_D_T, strict=True)
        ]


def step_batch(
    groups_P: Sequence[TrajectoryGroup],
    advantages_P_G: Sequence[NDArray[np.float64]],
    *,
    drop_zero_variance: bool,
) -> Batch:
    """The datums of a step's groups, and which of them are left out of the update.

    Raises:
        RunError: a rollout is not one datum.
    """
    data_D = step_data(groups_P, advantages_P_G)
    laid_D = [laid_out(trajectory) for group in groups_P for trajectory in group.trajectories_G]
    targets_D_T = [tokens[1:] for tokens, _ in laid_D]
    if targets_D_T != [datum.loss_fn_inputs["target_tokens"].tolist() for datum in data_D]:
        raise RunError(
            f"{len(laid_D)} rollouts became {len(data_D)} datums of other tokens; sample "
            "token-in, token-out"
        )
    dropped_D = [
        drop_zero_variance and is_zero_variance(group.get_total_rewards())
        for group in groups_P
        for _ in group.trajectories_G
    ]
    return Batch(data_D, [turn_T for _, turn_T in laid_D], drop_zero_variance, dropped_D)


def laid_out(trajectory: Trajectory) -> tuple[list[int], NDArray[np.int64]]:
    """A token-in, token-out trajectory as one sequence, and the turn of each target of its datum.

    Targets are shifted by one: entry t is of token t + 1, -1 where it was not sampled. An episode
    that ended before a token was sampled has neither tokens nor targets, as it has no datum.

    Raises:
        RunError: a prompt does not extend the prompt and reply before it, or an action does not
            have one log-prob a token.
    """
    tokens: list[int] = []
    turns: list[int] = []
    for turn, transition in enumerate(trajectory.transitions):
        prompt, action = transition.ob.to_ints(), transition.ac
        if prompt[: len(tokens)] != tokens or len(action.tokens) != len(action.logprobs):
            raise RunError(
                f"turn {turn}: the prompt does not extend the turn before, or {len(action.tokens)} "
                f"tokens have {len(action.logprobs)} log-probs; sample token-in, token-out"
            )
        turns += [NO_TURN] * (len(prompt) - len(tokens)) + [turn] * len(action.tokens)
        tokens = [*prompt, *action.tokens]
    return tokens, np.asarray(turns[1:], dtype=np.int64)


def step_data(
    groups_P: Sequence[TrajectoryGroup], advantages_P_G: Sequence[NDArray[np.float64]]
) -> list[tinker.Datum]:
    """One datum a rollout, group-major, aligned with the targets (shifted by one).

    Tokens that were not sampled carry advantage 0 and log-prob 0; every action token, stop tokens
    included, carries its rollout's advantage and the sampler's log-prob. The cookbook's `mask` is
    dropped, since a Tinker service does not take it.
    """
    import tinker
    import torch
    from tinker_cookbook.rl.data_processing import assemble_training_data

    data_D, _ = assemble_training_data(
        list(groups_P), [torch.from_numpy(advantages_G) for advantages_G in advantages_P_G]
    )
    sent = ("target_tokens", "logprobs", "advantages")
    return [
        tinker.Datum(
            model_input=datum.model_input,
            loss_fn_inputs={key: datum.loss_fn_inputs[key] for key in sent},
        )
        for datum in data_D
    ]


def tokens_of(datum: tinker.Datum) -> list[int]:
    """The whole sequence of a datum: its inputs and the last target."""
    last = datum.loss_fn_inputs["target_tokens"].tolist()[-1]
    return [*datum.model_input.to_ints(), int(last)]
