"""From graded rollouts and advantages to the datums that are sent, by the cookbook's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.types import TrajectoryGroup


def step_data(
    groups_P: Sequence[TrajectoryGroup], advantages_P_G: Sequence[NDArray[np.float64]]
) -> list[tinker.Datum]:
    """One datum a rollout, group-major, aligned with the targets (shifted by one).

    The prompt's tokens carry advantage 0 and log-prob 0; every action token, the stop token
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
