"""One optimizer step on a batch, its loss computed by the service or by this client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cards import Arm
from harness.cards.registration import LossBackend
from harness.records import CUSTOM_LOSS

if TYPE_CHECKING:
    import tinker
    import torch


@dataclass(frozen=True)
class Update:
    """What the service answered to one update, and figures of this client's own."""

    forward: tinker.ForwardBackwardOutput
    stepped: tinker.OptimStepResponse
    metrics: dict[str, float]


@dataclass(frozen=True)
class Sent:
    """An update whose requests have all been sent: what is sent next finds the updated weights."""

    passes: list[tinker.APIFuture[tinker.ForwardBackwardOutput]]
    step: tinker.APIFuture[tinker.OptimStepResponse]
    losses: list[CustomLoss]

    async def answer(self) -> Update:
        """What came of it; of several batches the first is answered for."""
        answers = [await each.result_async() for each in self.passes]
        metrics = {CUSTOM_LOSS: self.losses[0].value} if self.losses else {}
        return Update(answers[0], await self.step.result_async(), metrics)


async def update(
    client: tinker.TrainingClient,
    batches: Sequence[list[tinker.Datum]],
    arm: Arm,
    loss_backend: LossBackend,
    adam: tinker.AdamParams,
) -> Sent:
    """Send the gradient of every batch, to be accumulated, and the step; no answer is awaited.

    With the loss of this client each batch takes a forward pass first, whose answer the loss needs.
    """
    passes, losses = [], list[CustomLoss]()
    for data_D in batches:
        if loss_backend == "service":
            config = dict(arm.loss_config) or None
            passes.append(await client.forward_backward_async(data_D, arm.loss, config))
        else:
            loss = CustomLoss(arm, data_D)
            losses.append(loss)
            passes.append(await client.forward_backward_custom_async(loss.targets(), loss))
    return Sent(passes, await client.optim_step_async(adam), losses)


class CustomLoss:
    """An arm's loss over datums, computed here from the log-probs that the service returns.

    The SDK takes datums without log-probs and advantages: these are kept in the order of the
    datums. `value` is the loss of the last call.
    """

    def __init__(self, arm: Arm, data_D: Sequence[tinker.Datum]) -> None:
        import torch

        self._arm, self._data_D = arm, data_D
        self._inputs_D = [
            tuple(
                torch.tensor(datum.loss_fn_inputs[key].tolist(), dtype=torch.float64)
                for key in ("logprobs", "advantages")
            )
            for datum in data_D
        ]
        self.value = 0.0

    def targets(self) -> list[tinker.Datum]:
        """The datums with their targets alone."""
        import tinker

        return [
            tinker.Datum(
                model_input=datum.model_input,
                loss_fn_inputs={"target_tokens": datum.loss_fn_inputs["target_tokens"]},
            )
            for datum in self._data_D
        ]

    def __call__(
        self,
        data: list[tinker.Datum],  # noqa: ARG002  the SDK gives back what it was sent
        logprobs_D: list[torch.Tensor],
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The summed loss, differentiable by the log-probs; float64 but for these."""
        import torch

        terms = [
            token_loss(self._arm, logprobs_T.double(), *inputs).sum()
            for logprobs_T, inputs in zip(logprobs_D, self._inputs_D, strict=True)
        ]
        total = torch.stack(terms).sum()
        self.value = float(total.detach())
        return total, {}


def token_loss(
    arm: Arm, logprobs_T: torch.Tensor, behaviour_T: torch.Tensor, advantages_T: torch.Tensor
) -> torch.Tensor:
    """The loss of every token: -r A, or -min(r A, clamp(r, low, high) A) for ppo.

    Source: the Tinker documentation's loss page, as in `harness.methods.losses`.
    """
    import torch

    ratio_T = torch.exp(logprobs_T - behaviour_T)
    if arm.loss == "importance_sampling":
        return -ratio_T * advantages_T
    low, high = arm.loss_config["clip_low_threshold"], arm.loss_config["clip_high_threshold"]
    return -torch.minimum(ratio_T * advantages_T, ratio_T.clamp(low, high) * advantages_T)
