"""The gated delta rule: the linear-attention layers of the Qwen3.5 family.

Per value head a state S `[K, V]` is carried along the row (Yang et al., "Gated Delta Networks",
arXiv:2412.06464):  S' = exp(g) S;  S'' = S' + k (beta (v - k S'))ᵀ;  output = q S''.
`delta_rows` computes whole rows in chunks of `CHUNK` positions (the recurrence inside a chunk is a
unit triangular system), `delta_step` one position. Before that, a causal convolution of a few taps
runs over the fused q, k, v channels.

Shapes: B rows, T positions, N value heads, K and V head widths, C convolved channels, W taps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32


def convolve(x_B_T_C: Tensor, taps_C_W: Tensor) -> Tensor:
    """Causal depthwise convolution and SiLU, `[B, T, C]`; zeros stand before the row."""
    T, W = x_B_T_C.shape[1], taps_C_W.shape[1]
    padded = F.pad(x_B_T_C, (0, 0, W - 1, 0))
    return F.silu(torch.stack([padded[:, i : i + T] * taps_C_W[:, i] for i in range(W)]).sum(0))


def convolve_step(window_B_W_C: Tensor, taps_C_W: Tensor) -> Tensor:
    """The same for the last position of a window of W positions, `[B, C]`."""
    parts = [window_B_W_C[:, i] * taps_C_W[:, i] for i in range(taps_C_W.shape[1])]
    return F.silu(torch.stack(parts).sum(0))


def delta_rows(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs `[B, N, T, V]` and the state `[B, N, K, V]` behind the last position.

    q and k are `[B, N, T, K]`, v `[B, N, T, V]`, g (log decay) and beta `[B, N, T]`. Where g and
    beta are zero the state does not change: that is how padding is skipped.
    """
    T = q.shape[2]
    q, k, v, g, beta = (_chunked(x, T) for x in (q, k, v, g[..., None], beta[..., None]))
    g = g.double().cumsum(-2)  # differences of large sums: float32 would lose three digits
    decay = (g - g.transpose(-1, -2)).tril().exp().tril().to(q.dtype)
    last = g[..., -1:, :]
    grown, left, all_of_it = (x.exp().to(q.dtype) for x in (g, last - g, last))
    system = (beta * k @ k.transpose(-1, -2) * decay).tril(-1)
    right = torch.cat((beta * v, beta * k * grown), -1)
    solved = torch.linalg.solve_triangular(
        system + torch.eye(CHUNK, dtype=q.dtype), right, upper=False, unitriangular=True
    )
    values, keys = solved.tensor_split((v.shape[-1],), -1)
    scores = q @ k.transpose(-1, -2) * decay
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for c in range(q.shape[2]):
        new = values[:, :, c] - keys[:, :, c] @ state
        outputs.append((q[:, :, c] * grown[:, :, c]) @ state + scores[:, :, c] @ new)
        kept = k[:, :, c] * left[:, :, c]
        state = state * all_of_it[:, :, c] + kept.transpose(-1, -2) @ new
    return torch.cat(outputs, 2)[:, :, :T], state


def delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """One position: outputs `[B, N, V]`; `state` is updated in place.

    q and k are `[B, N, K]`, v `[B, N, V]`, g and beta `[B, N]`, state `[B, N, K, V]`.
    """
    state *= g.exp()[..., None, None]
    error = (v - (k[..., None] * state).sum(-2)) * beta[..., None]
    state += k[..., None] * error[..., None, :]
    return (q[..., None] * state).sum(-2)


def unit(x: Tensor) -> Tensor:
    """x over its length, along the last dimension."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _chunked(x: Tensor, length: int) -> Tensor:
    """`[B, N, T, ...]` as `[B, N, chunks, CHUNK, ...]`, zeros behind the end."""
    padded = F.pad(x, (0, 0, 0, -length % CHUNK))
    return padded.view(*x.shape[:2], -1, CHUNK, x.shape[-1])
