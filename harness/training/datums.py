"""From graded rollouts and advantages to the datums that are sent, by the cookbook's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import RunError
from harness.training.token_rows import NO_TURN

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.types import TrajectoryGroup

    from harness.training.rollouts import SampledGroup


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

    def actions(self, values_D_T: Sequence[Sequence[float]]) -> list[list[float]]:
        """Of values for all targets, those of the action tokens."""
        return [
            np.asarray(values_T, dtype=np.float64)[turn_T != NO_TURN].tolist()
            for values_T, turn_T in zip(values_D_T, self.turns_D_T, strict=True)
        ]


def step_batch(
    groups: Sequence[SampledGroup],
    advantages_P_G: Sequence[NDArray[np.float64]],
    *,
    drop_zero_variance: bool,
) -> Batch:
    """The datums of a step's groups, and which of them are left out of the update.

    Raises:
        RunError: a rollout is not one datum.
    """
    data_D = step_data([group.rollouts for group in groups], advantages_P_G)
    rows_D = [row for group in groups for row in group.rows_G]
    targets_D_T = [row.targets_T.tolist() for row in rows_D]
    if targets_D_T != [datum.loss_fn_inputs["target_tokens"].tolist() for datum in data_D]:
        raise RunError(
            f"{len(rows_D)} rollouts became {len(data_D)} datums of other tokens; sample "
            "token-in, token-out"
        )
    dropped = [drop_zero_variance and group.zero_variance for group in groups for _ in group.rows_G]
    return Batch(data_D, [row.turn_T for row in rows_D], drop_zero_variance, dropped)


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
