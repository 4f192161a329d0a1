"""Evidence for `baseline_correctness`: the harness's path against the stock cookbook's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.audit.baseline_correctness import BaselineEvidence
from harness.audit.probes.correctness import SEED, one_thread, path_agreement, small_model
from harness.cards import Arm, Experiment
from harness.errors import RunError
from harness.methods.staleness import is_zero_variance
from harness.training.datums import step_data
from harness.training.estimators import estimator

if TYPE_CHECKING:
    import tinker
    import torch

GROUPS, GROUP_SIZE = 8, 8


@one_thread()
def collect(experiment: Experiment) -> BaselineEvidence:
    """The baseline arm's path and the stock cookbook's, on the same fixed rollouts."""
    from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
    from tinker_cookbook.rl.train import _remove_mask

    from harness.audit.probes.fixed_rollouts import fixed_groups, grouped_rewards
    from harness.audit.probes.small_model import datum_logprobs, flat, torch_loss

    arm = stock_arm(experiment)
    model = small_model()
    groups = fixed_groups(grouped_rewards(GROUPS, GROUP_SIZE, SEED), model, SEED)
    rewards_P_G = [group.get_total_rewards() for group in groups]
    # problems are not looked at by an estimator that centres within groups
    ours = step_data(groups, estimator(arm, []).estimate([], rewards_P_G).advantages_P_G)
    masked, _ = assemble_training_data(groups, compute_advantages(groups))
    stock = [_remove_mask(datum) for datum in masked]

    logprobs = datum_logprobs(model, stock)
    loss = torch_loss(
        arm.loss, logprobs, flat(stock, "logprobs"), flat(stock, "advantages"), {**arm.loss_config}
    )
    gradient = _gradient_by(loss, logprobs)
    return BaselineEvidence(
        cookbook=metadata.version("tinker-cookbook"),
        datums=len(stock),
        action_tokens=int(sum(sum(datum.loss_fn_inputs["mask"].tolist()) for datum in masked)),
        zero_variance_groups=sum(map(is_zero_variance, rewards_P_G)),
        unequal=unequal_datums(ours, stock),
        path=path_agreement(arm, ours, flat(stock, "advantages"), float(loss.detach()), gradient),
    )


def stock_arm(experiment: Experiment) -> Arm:
    """The baseline arm; in a design of cells an arm with the one estimator that is stock.

    Raises:
        RunError: the baseline's advantages are not made within groups, as the stock cookbook's are.
    """
    baselines = experiment.role("baseline")
    if baselines and baselines[0].declared.kernel != "none":
        raise RunError(
            f"arm {baselines[0].name} has the role baseline and the estimator "
            f"{baselines[0].estimator}, which is not the stock cookbook's; look for roles exchanged"
        )
    if baselines:
        return baselines[0]
    return dataclasses.replace(experiment.arms[0], estimator="group_mean", estimator_config={})


def unequal_datums(ours: Sequence[tinker.Datum], stock: Sequence[tinker.Datum]) -> list[str]:
    """Which datums differ in tokens, targets or behaviour log-probs, or are on one side only."""
    found = []
    for index, (a, b) in enumerate(zip(ours, stock, strict=False)):
        parts = [
            key
            for key in ("target_tokens", "logprobs")
            if not _same(a.loss_fn_inputs[key], b.loss_fn_inputs[key])
        ]
        if a.model_input.to_ints() != b.model_input.to_ints():
            parts.append("model_input")
        if set(a.loss_fn_inputs) != set(b.loss_fn_inputs):
            parts.append(f"keys {sorted(set(a.loss_fn_inputs) ^ set(b.loss_fn_inputs))}")
        if parts:
            found.append(f"datum {index}: {', '.join(parts)}")
    if len(ours) != len(stock):
        found.append(f"{len(ours)} datums against {len(stock)}")
    return found


def _gradient_by(loss: torch.Tensor, logprobs: torch.Tensor) -> NDArray[np.float64]:
    import torch

    (gradient,) = torch.autograd.grad(loss, logprobs, retain_graph=True)
    return gradient.numpy()


def _same(a: tinker.TensorData, b: tinker.TensorData) -> bool:
    left, right = a.to_numpy(), b.to_numpy()
    return left.dtype == right.dtype and np.array_equal(left, right)
