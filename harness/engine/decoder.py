"""The decoder of the Qwen3, Qwen3.5 and Llama families, written for small batches on a CPU.

Projections that read the same input are fused (q, k and v; gate and up), so a layer is four matrix
products. The same weights serve two passes: `full_pass` over whole rows (training and prefill) and
`decode_step` over one token per row with a cache. Layers mix positions by attention or, in some
layers of Qwen3.5, by the gated delta rule (`delta_net`).

Shapes: B rows, T positions, D width, H query heads, G key/value heads, K head width, V vocabulary.
Everything is float32.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine import delta_net
from harness.engine.architecture import (
    DecoderConfig,
    DeltaConfig,
    DeltaWeights,
    LayerWeights,
    Weights,
)
from harness.engine.cache import BLOCK, Cache, Kept
from harness.engine.rope import Rope


def full_pass(
    config: DecoderConfig,
    weights: Weights,
    rope: Rope,
    tokens_B_T: Tensor,
    lengths_B: Tensor | None = None,
) -> tuple[Tensor, Kept]:
    """Causal pass over whole rows: final hidden states `[B, T, D]`, and what decoding needs.

    Rows are padded on the right; a causal row never looks at its padding. Kept per layer are keys
    and values `[B, G, T, K]`, or the convolution's last inputs and the state at the row's own end,
    which `lengths_B` gives (all of T by default).
    """
    T = tokens_B_T.shape[1]
    cos, sin = rope.cos_T_K[:T, None, :], rope.sin_T_K[:T, None, :]
    hidden = F.embedding(tokens_B_T, weights.embed_V_D)
    kept: Kept = []
    for index, layer in enumerate(weights.layers):
        x = F.linear(_rms_norm(hidden, layer.input_norm_D, config.norm_eps), layer.qkv)
        if config.is_delta(index):
            mixed, pair = _delta_rows(config, layer, x, lengths_B)
        else:
            mixed, pair = _attend_rows(config, layer, x, cos, sin)
        hidden = hidden + F.linear(mixed, layer.attn_out)
        hidden = hidden + _mlp(config, layer, hidden)
        kept.append(pair)
    return _rms_norm(hidden, weights.final_norm_D, config.norm_eps), kept


def decode_step(
    config: DecoderConfig,
    weights: Weights,
    rope: Rope,
    cache: Cache,
    tokens_B: Tensor,
    positions_B: Tensor,
) -> Tensor:
    """One more token for each of the cache's first B rows: logits `[B, V]`.

    A row's result does not depend on how far the others have come: attention goes over blocks of
    fixed size and edges, and a block that is ahead of a row adds exact zeros to it.
    """
    cos, sin = rope.cos_T_K[positions_B, None, :], rope.sin_T_K[positions_B, None, :]
    place = _Place(config, positions_B)
    hidden = F.embedding(tokens_B, weights.embed_V_D)
    for index, layer in enumerate(weights.layers):
        x = F.linear(_rms_norm(hidden, layer.input_norm_D, config.norm_eps), layer.qkv)
        if config.is_delta(index):
            mixed = _delta_one(config, layer, x, cache.entries[index])
        else:
            mixed = _attend_one(config, layer, x, cos, sin, cache.entries[index], place)
        hidden = hidden + F.linear(mixed, layer.attn_out)
        hidden = hidden + _mlp(config, layer, hidden)
    return F.linear(_rms_norm(hidden, weights.final_norm_D, config.norm_eps), weights.unembed_V_D)


class _Place:
    """Where the entries (B * G) of a step stand: their blocks, and what is ahead of them."""

    def __init__(self, config: DecoderConfig, positions_B: Tensor) -> None:
        positions_E = positions_B.repeat_interleave(config.kv_heads)
        self.entry_E = torch.arange(len(positions_E))
        self.block_E, self.at_E = positions_E // BLOCK, positions_E % BLOCK
        self.blocks = int(self.block_E.max()) + 1
        # blocks that every entry has behind it need no mask; adding zero would change no bit
        self.masked = int(self.block_E.min())
        ahead = torch.arange(self.masked * BLOCK, self.blocks * BLOCK).view(-1, 1, 1, BLOCK)
        mask = torch.zeros(len(ahead), len(positions_E), 1, BLOCK)
        self.mask = mask.masked_fill_(ahead > positions_E[:, None, None], -math.inf)


def _attend_rows(
    config: DecoderConfig, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Causal attention over rows: mixed values `[B, T, H * K]`, keys and values."""
    B, T, _ = x.shape
    q, k, v, gate = _heads(config, layer, x.view(B, T, -1, config.head_width), cos, sin)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=config.heads != config.kv_heads
    )
    mixed = mixed.transpose(1, 2).reshape(B, T, -1)
    return mixed if gate is None else mixed * gate.flatten(-2).sigmoid(), (k, v)


def _attend_one(
    config: DecoderConfig,
    layer: LayerWeights,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    entry: tuple[Tensor, Tensor],
    place: _Place,
) -> Tensor:
    """Attention of one position per row to its row so far: `[B, H * K]`.

    Both products have the shape of one block, and their sums are added up in the blocks' order.
    """
    B, K, E = len(x), config.head_width, len(place.entry_E)
    q, k, v, gate = _heads(config, layer, x.view(B, -1, K), cos, sin)
    keys, values = entry[0][: place.blocks, :E], entry[1][: place.blocks, :E]
    keys[place.block_E, place.entry_E, :, place.at_E] = k.reshape(E, K)
    values[place.block_E, place.entry_E, place.at_E] = v.reshape(E, K)
    q = (q * K**-0.5).reshape(E, -1, K)
    scores = x.new_empty(place.blocks, E, q.shape[1], BLOCK)
    for block in range(place.blocks):
        torch.bmm(q, keys[block], out=scores[block])
    scores[place.masked :] += place.mask
    parts = scores.sub_(scores.amax(-1, keepdim=True).amax(0)).exp_()
    sums = parts.sum(-1, keepdim=True)
    weighted, total = torch.bmm(parts[0], values[0]), sums[0]
    for block in range(1, place.blocks):
        weighted.baddbmm_(parts[block], values[block])
        total += sums[block]
    mixed = (weighted / total).view(B, -1)
    return mixed if gate is None else mixed * gate.flatten(-2).sigmoid()


def _delta_rows(
    config: DecoderConfig, layer: LayerWeights, x: Tensor, lengths_B: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The gated delta rule over rows: outputs `[B, T, N * V]`, last inputs and state."""
    d, own = config.delta_rule, layer.delta_rule
    B, T, _ = x.shape
    inputs = x[..., : d.channels]
    q, k, v, g, beta = _delta_parts(d, own, x, delta_net.convolve(inputs, own.taps_C_W))
    lengths = torch.full((B,), T) if lengths_B is None else lengths_B
    if lengths_B is not None:
        real = (torch.arange(T) < lengths[:, None])[..., None]
        g, beta = g * real, beta * real
    out, state = delta_net.delta_rows(*(part.transpose(1, 2) for part in (q, k, v, g, beta)))
    window = F.pad(inputs, (0, 0, d.taps - 1, 0))
    last = lengths[:, None] + torch.arange(d.taps - 1)
    return _gated(config, own, out.transpose(1, 2), x), (
        window[torch.arange(B)[:, None], last],
        state,
    )


def _delta_one(
    config: DecoderConfig, layer: LayerWeights, x: Tensor, entry: tuple[Tensor, Tensor]
) -> Tensor:
    """One position of the gated delta rule per row: `[B, N * V]`; the entry moves on."""
    d, own = config.delta_rule, layer.delta_rule
    window, state = entry[0][: len(x)], entry[1][: len(x)]
    seen = torch.cat((window, x[:, None, : d.channels]), 1)
    window.copy_(seen[:, 1:])
    q, k, v, g, beta = _delta_parts(d, own, x, delta_net.convolve_step(seen, own.taps_C_W))
    return _gated(config, own, delta_net.delta_step(q, k, v, g, beta, state), x)


def _delta_parts(
    d: DeltaConfig, own: DeltaWeights, x: Tensor, convolved: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k `[..., N, K]`, v `[..., N, V]`, log decay and beta `[..., N]`."""
    keys = d.key_heads * d.key_width
    q, k, v = convolved.tensor_split((keys, 2 * keys), -1)
    heads = x.shape[:-1]
    q, k = (part.reshape(*heads, d.key_heads, d.key_width) for part in (q, k))
    repeats = d.value_heads // d.key_heads
    if repeats > 1:
        q, k = q.repeat_interleave(repeats, -2), k.repeat_interleave(repeats, -2)
    b, a = x[..., -2 * d.value_heads :].chunk(2, -1)
    g = own.decay_N * F.softplus(a + own.step_bias_N)
    v = v.reshape(*heads, d.value_heads, d.value_width)
    return delta_net.unit(q) * d.key_width**-0.5, delta_net.unit(k), v, g, b.sigmoid()


def _gated(config: DecoderConfig, own: DeltaWeights, out: Tensor, x: Tensor) -> Tensor:
    """The normalised output of each value head times its gate, heads side by side."""
    d = config.delta_rule
    gate = x[..., d.channels : d.channels + d.value_heads * d.value_width]
    out = _rms_norm(out, own.norm_V, config.norm_eps)
    return out.flatten(-2) * F.silu(gate)


def _heads(
    config: DecoderConfig, layer: LayerWeights, qkv: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Split the fused projection `[..., heads, K]` into q, k, v and the output gate.

    Queries and keys are normalised and rotated.
    """
    gate = None
    if config.output_gate:
        queries = qkv[..., : 2 * config.heads, :]
        gate = queries[..., 1::2, :]
        qkv = torch.cat((queries[..., 0::2, :], qkv[..., 2 * config.heads :, :]), -2)
    rotated = config.heads + config.kv_heads
    qk, v = qkv[..., :rotated, :], qkv[..., rotated:, :]
    if layer.qk_scale_HK is not None:
        qk = F.rms_norm(qk, (config.head_width,), eps=config.norm_eps) * layer.qk_scale_HK
    if config.rotary_width == config.head_width:
        qk = _rotated(qk, cos, sin)
    else:
        turned, still = qk[..., : config.rotary_width], qk[..., config.rotary_width :]
        qk = torch.cat((_rotated(turned, cos, sin), still), -1)
    return qk[..., : config.heads, :], qk[..., config.heads :, :], v, gate


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    swapped = x.reshape(*x.shape[:-1], 2, -1).flip(-2).flatten(-2)
    return torch.addcmul(x * cos, swapped, sin)


def _mlp(config: DecoderConfig, layer: LayerWeights, hidden: Tensor) -> Tensor:
    """The gated feed-forward half of a block."""
    both = F.linear(_rms_norm(hidden, layer.mlp_norm_D, config.norm_eps), layer.gate_up)
    gate, up = both.chunk(2, -1)
    return F.linear(F.silu(gate) * up, layer.down)


def _rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight_D.shape, weight_D, eps)
