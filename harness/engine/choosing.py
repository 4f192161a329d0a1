"""From log-probs to tokens: temperature, top-k, top-p, and a draw from each sequence's stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.engine.sequences import Sampled


def choose_tokens(logprobs_B_V: Tensor, sequences: Sequence[Sampled]) -> Tensor:
    """The next token of each sequence, by inversion of its tempered, filtered distribution."""
    greedy = [s.request.params.temperature == 0 for s in sequences]
    if all(greedy):
        return logprobs_B_V.argmax(-1)
    temperatures = torch.tensor(
        [
            1.0 if g else s.request.params.temperature
            for s, g in zip(sequences, greedy, strict=True)
        ],
    )
    tempered = logprobs_B_V / temperatures[:, None]
    mass = tempered.softmax(-1)
    for row, sequence in enumerate(sequences):
        params = sequence.request.params
        if params.top_k > 0 or params.top_p < 1:
            mass[row] = _filtered(mass[row], params.top_k, params.top_p)
    cumulative = mass.cumsum(-1, dtype=torch.float64)
    draws = torch.tensor([s.draw() for s in sequences], dtype=torch.float64)
    drawn = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)
    chosen = drawn[:, 0].clamp_(max=logprobs_B_V.shape[-1] - 1)
    if any(greedy):
        chosen = torch.where(torch.tensor(greedy), logprobs_B_V.argmax(-1), chosen)
    return chosen


def _filtered(mass_V: Tensor, top_k: int, top_p: float) -> Tensor:
    """Zero what is outside the top k, then outside the smallest set that holds `top_p` of it."""
    order = torch.argsort(mass_V, descending=True, stable=True)
    ranked = mass_V[order]
    if top_k > 0:
        ranked[top_k:] = 0
    if top_p < 1:
        before = ranked.cumsum(-1) - ranked
        ranked[before >= top_p * ranked.sum()] = 0
        ranked[0] = mass_V[order[0]]
    return torch.zeros_like(mass_V).scatter_(0, order, ranked)
