"""The cosine between the update's gradient and that of fresh rollouts, from three norms.

A service returns no gradient, but an optimizer step reports the norm of what was accumulated.
A second client at the learner's weights takes steps of size 0: on the update's batch (g), on fresh
rollouts of the learner (h), and on both. Then g h = (|g + h|^2 - |g|^2 - |h|^2) / 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.cards import Arm
from harness.cards.registration import LossBackend
from harness.errors import RunError
from harness.training.updates import update

if TYPE_CHECKING:
    import tinker

NORMS = ("grad_norm", "unclipped_grad_l2:mean")
"""Names under which services report the norm of the accumulated gradient."""

SLACK = 1e-3
"""By how much a cosine of float32 norms may leave [-1, 1]."""

Data = list["tinker.Datum"]


async def gradient_cosine(
    where: str,
    client: tinker.TrainingClient,
    arm: Arm,
    loss_backend: LossBackend,
    batch: Data,
    fresh: Data,
) -> dict[str, float]:
    """`probe/norm_batch`, `probe/norm_fresh`, and `probe/cosine` where neither is 0.

    The weights of `client` stay as they are.

    Raises:
        RunError: the service reports no norm, or norms that no two gradients have.
    """
    sent = [
        await update(client, batches, arm, loss_backend, still())
        for batches in ([batch], [fresh], [batch, fresh])
    ]
    norms = [reported_norm(where, (await each.answer()).stepped.metrics or {}) for each in sent]
    return cosine_metrics(where, *norms)


def cosine_metrics(where: str, batch: float, fresh: float, both: float) -> dict[str, float]:
    """The cosine of two gradients from their norms and that of their sum.

    Raises:
        RunError: the norms break the triangle inequality by more than rounding.
    """
    metrics = {"probe/norm_batch": batch, "probe/norm_fresh": fresh}
    if min(batch, fresh) > 0.0:
        cosine = (both**2 - batch**2 - fresh**2) / (2.0 * batch * fresh)
        if not abs(cosine) <= 1.0 + SLACK * max(batch, fresh) / min(batch, fresh):
            raise RunError(
                f"{where}: gradient norms {batch:.6g}, {fresh:.6g} and {both:.6g} of the sum give "
                f"the cosine {cosine:.6g}; drop gradient_probe, this service reports another norm"
            )
        metrics["probe/cosine"] = min(1.0, max(-1.0, cosine))
    return metrics


def reported_norm(where: str, metrics: Mapping[str, float]) -> float:
    """The norm that an optimizer step reports.

    Raises:
        RunError: there is none.
    """
    for name in NORMS:
        if name in metrics:
            return float(metrics[name])
    raise RunError(
        f"{where}: the optimizer step reports {sorted(metrics)}, none of {', '.join(NORMS)}; "
        "drop gradient_probe from the registration, or use a service that reports the norm"
    )


def fresh_arm(arm: Arm, groups: int) -> Arm:
    """The arm as the probe samples for it: fewer groups, and a random stream of its own."""
    return dataclasses.replace(arm, name=f"{arm.name}/probe", groups_per_batch=groups, lag=0)


def still() -> tinker.AdamParams:
    """A step of size 0: the norm is reported, the weights stay."""
    import tinker

    return tinker.AdamParams(learning_rate=0.0, beta1=0.9, beta2=0.95, eps=1.0)
