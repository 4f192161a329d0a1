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

    def logprobs(
        self, tokens_B: Sequence[Sequence[int]], targets_B: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Log-probs of every target after the tokens up to its position, row after row."""
        # the recurrence runs forwards, so padding at the end changes nothing before it
        tokens_B_T, targets_B_T = _padded(tokens_B), _padded(targets_B)
        states_B_T_W, _ = self.recurrent(self.embedding(tokens_B_T))
        logprobs_B_T_V = torch.log_softmax(self.unembedding(states_B_T_W), dim=-1)
        logprobs_B_T = logprobs_B_T_V.gather(2, targets_B_T[..., None])[..., 0]
        lengths_B_1 = torch.tensor([[len(row)] for row in targets_B])
        return logprobs_B_T[torch.arange(tokens_B_T.shape[1]) < lengths_B_1]


def datum_logprobs(model: SmallModel, data_D: Sequence[tinker.Datum]) -> torch.Tensor:
    """Log-probs of all targets of all datums, one after another."""
    return model.logprobs(
        [datum.model_input.to_ints() for datum in data_D],
        [datum.loss_fn_inputs["target_tokens"].tolist() for datum in data_D],
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
    """The service's loss as its documentation writes it, differentiable: a sum over tokens.

    It stands for the other side of a comparison, so it shares nothing with the harness's own.
    """
    ratio = torch.exp(logprobs - torch.from_numpy(behaviour))
    gains = ratio * torch.from_numpy(advantages)
    if name == "ppo":
        low, high = config["clip_low_threshold"], config["clip_high_threshold"]
        clipped = torch.clamp(ratio, low, high) * torch.from_numpy(advantages)
        return -torch.minimum(gains, clipped).sum()
    return -gains.sum()


def _padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
