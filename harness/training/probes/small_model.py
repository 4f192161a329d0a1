"""A small language model in float64, in which a parameter gradient is exact enough to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tinker

WIDTH = 16
SCALE = 0.4


class SmallModel(torch.nn.Module):
    """Embedding, one recurrent layer, unembedding; weights drawn from a named seed."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, WIDTH, dtype=torch.float64)
        self.recurrent = torch.nn.GRU(WIDTH, WIDTH, batch_first=True, dtype=torch.float64)
        self.unembedding = torch.nn.Linear(WIDTH, vocabulary, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0.0, SCALE, generator=generator)

    def logprobs(self, tokens_T: Sequence[int], targets_T: Sequence[int]) -> torch.Tensor:
        """Log-probs (T,) of each target after the tokens up to its position."""
        states, _ = self.recurrent(self.embedding(torch.tensor([tokens_T])))
        logits_T_V = self.unembedding(states[0])
        return torch.log_softmax(logits_T_V, dim=-1)[torch.arange(len(targets_T)), targets_T]


def datum_logprobs(model: SmallModel, data_D: Sequence[tinker.Datum]) -> torch.Tensor:
    """Log-probs of all targets of all datums, one after another."""
    return torch.cat(
        [
            model.logprobs(
                datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].tolist()
            )
            for datum in data_D
        ]
    )


def flat(data_D: Sequence[tinker.Datum], key: str) -> NDArray[np.float64]:
    """One loss input of all datums, one after another, as sent (float32) in float64."""
    return np.concatenate(
        [np.asarray(datum.loss_fn_inputs[key].tolist(), dtype=np.float64) for datum in data_D]
    )


def parameter_gradient(
    model: SmallModel, logprobs: torch.Tensor, gradient: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The gradient by all parameters, from the gradient by log-probs."""
    rows = torch.autograd.grad(
        logprobs, list(model.parameters()), torch.from_numpy(gradient), retain_graph=True
    )
    return np.concatenate([row.numpy().ravel() for row in rows])


def torch_loss(
    name: str,
    logprobs: torch.Tensor,
    behaviour: NDArray[np.float64],
    advantages: NDArray[np.float64],
    config: dict[str, float],
) -> torch.Tensor:
    """The service's loss as its documentation writes it, differentiable: a sum over tokens."""
    ratio = torch.exp(logprobs - torch.from_numpy(behaviour))
    gains = ratio * torch.from_numpy(advantages)
    if name == "ppo":
        low, high = config["clip_low_threshold"], config["clip_high_threshold"]
        clipped = torch.clamp(ratio, low, high) * torch.from_numpy(advantages)
        return -torch.minimum(gains, clipped).sum()
    return -gains.sum()
