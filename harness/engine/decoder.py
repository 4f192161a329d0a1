"""The decoder-only transformer of the Qwen3 and Llama families, written for small batches on a CPU.

Projections that read the same input are fused (q, k and v; gate and up), so a layer is four matrix
products. The same weights serve two passes: `full_pass` over whole rows (training and prefill) and
`decode_step` over one token per row with a key/value cache.

Shapes: B rows, T positions, D width, H query heads, G key/value heads, K head width, V vocabulary.
Everything is float32.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RopeScaling:
    """The frequency rescaling of Llama 3.1 and later."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True)
class DecoderConfig:
    """What distinguishes one model of these families from another."""

    family: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    max_positions: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qk_norm: bool
    tied: bool
    eos_ids: frozenset[int]

    @property
    def q_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_width


@dataclass(frozen=True)
class LayerWeights:
    """One block. `qk_scale_HK` holds the per-head q and k norm weights, None without q/k norm."""

    input_norm_D: Tensor
    qkv: Tensor
    qk_scale_HK: Tensor | None
    attn_out: Tensor
    mlp_norm_D: Tensor
    gate_up: Tensor
    down: Tensor


MATRICES = ("qkv", "attn_out", "gate_up", "down")


@dataclass(frozen=True)
class Weights:
    """A whole model; `unembed_V_D` is the same tensor as `embed_V_D` where the two are tied."""

    embed_V_D: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm_D: Tensor
    unembed_V_D: Tensor

    def replace(self, matrices: dict[str, Tensor]) -> Weights:
        """The same model with some matrices exchanged; keys as `matrix_names` gives them."""
        layers = tuple(
            dataclasses.replace(
                layer,
                **{
                    name: matrices[key]
                    for name in MATRICES
                    if (key := f"{index}.{name}") in matrices
                },
            )
            for index, layer in enumerate(self.layers)
        )
        unembed = matrices.get("unembed", self.unembed_V_D)
        return dataclasses.replace(self, layers=layers, unembed_V_D=unembed)

    def matrix(self, key: str) -> Tensor:
        """The matrix called `<layer>.<name>` or `unembed`."""
        if key == "unembed":
            return self.unembed_V_D
        index, name = key.split(".")
        found: Tensor = getattr(self.layers[int(index)], name)
        return found


class Rope:
    """Rotary position tables that grow as longer rows come in.

    `sin` carries the sign of the rotation, so rotating is `x * cos + swap_halves(x) * sin`.
    """

    def __init__(self, config: DecoderConfig) -> None:
        exponent = torch.arange(0, config.head_width, 2, dtype=torch.float32) / config.head_width
        inverse = 1.0 / config.rope_theta**exponent
        if config.rope_scaling is not None:
            inverse = _rescaled(inverse, config.rope_scaling)
        self._inverse = inverse
        self._growing = threading.Lock()
        self.cos_T_K, self.sin_T_K = self._tables(min(512, config.max_positions))

    def reserve(self, length: int) -> None:
        """Make sure that positions below `length` have an entry; from any thread."""
        with self._growing:
            if length > len(self.cos_T_K):
                self.cos_T_K, self.sin_T_K = self._tables(max(length, 2 * len(self.cos_T_K)))

    def _tables(self, length: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(length, dtype=torch.float32)[:, None] * self._inverse[None, :]
        sin = angles.sin()
        return torch.cat((angles, angles), -1).cos(), torch.cat((-sin, sin), -1)


class KVCache:
    """Keys and values of up to `rows` rows, per layer.

    Keys are kept as `[rows * G, K, capacity]` and values as `[rows * G, capacity, K]`: each is what
    a matrix product of one query with a whole row reads fastest.
    """

    def __init__(self, config: DecoderConfig, rows: int, capacity: int) -> None:
        entries, K = rows * config.kv_heads, config.head_width
        self.rows, self.capacity, self.kv_heads = rows, capacity, config.kv_heads
        self.keys = [torch.zeros(entries, K, capacity) for _ in range(config.layers)]
        self.values = [torch.zeros(entries, capacity, K) for _ in range(config.layers)]

    def write_row(self, row: int, keys: list[Tensor], values: list[Tensor]) -> None:
        """Put the first positions of one row; each tensor is `[G, T, K]`."""
        at = slice(row * self.kv_heads, (row + 1) * self.kv_heads)
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            self.keys[layer][at, :, : key.shape[1]] = key.transpose(1, 2)
            self.values[layer][at, : value.shape[1]] = value

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another."""
        g = self.kv_heads
        to, of = slice(target * g, (target + 1) * g), slice(source * g, (source + 1) * g)
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[to, :, :length] = keys[of, :, :length]
            values[to, :length] = values[of, :length]

    def grown(self, config: DecoderConfig, rows: int, capacity: int) -> KVCache:
        """A larger cache with the same content."""
        larger = KVCache(config, rows, capacity)
        for layer in range(config.layers):
            larger.keys[layer][: len(self.keys[layer]), :, : self.capacity] = self.keys[layer]
            larger.values[layer][: len(self.values[layer]), : self.capacity] = self.values[layer]
        return larger


def full_pass(
    config: DecoderConfig, weights: Weights, rope: Rope, tokens_B_T: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Causal pass over whole rows: final hidden states `[B, T, D]`, and (keys, values) per layer.

    Rows are padded on the right; a causal row never looks at its padding. Keys and values have
    shape `[B, G, T, K]`.
    """
    B, T = tokens_B_T.shape
    cos, sin = rope.cos_T_K[:T, None, :], rope.sin_T_K[:T, None, :]
    hidden = F.embedding(tokens_B_T, weights.embed_V_D)
    cached = []
    for layer in weights.layers:
        qkv = F.linear(_rms_norm(hidden, layer.input_norm_D, config.norm_eps), layer.qkv)
        q, k, v = _heads(config, layer, qkv.view(B, T, -1, config.head_width), cos, sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=config.heads != config.kv_heads
        )
        hidden = hidden + F.linear(mixed.transpose(1, 2).reshape(B, T, -1), layer.attn_out)
        hidden = hidden + _mlp(config, layer, hidden)
        cached.append((k, v))
    return _rms_norm(hidden, weights.final_norm_D, config.norm_eps), cached


def decode_step(
    config: DecoderConfig,
    weights: Weights,
    rope: Rope,
    cache: KVCache,
    tokens_B: Tensor,
    positions_B: Tensor,
    length: int,
) -> Tensor:
    """One more token for each of the cache's first B rows: logits `[B, V]`.

    `length` is at least the largest position plus one. A row's result depends neither on `length`
    nor on B (see `sampler`): masked positions add exact zeros.
    """
    B, G, K = len(tokens_B), config.kv_heads, config.head_width
    per_group = config.heads // G
    cos, sin = rope.cos_T_K[positions_B, None, :], rope.sin_T_K[positions_B, None, :]
    ahead_B_L = torch.arange(length)[None, :] > positions_B[:, None]
    mask_B_L = torch.zeros(B, length).masked_fill_(ahead_B_L, -math.inf)
    mask = mask_B_L[:, None, None, :].expand(B, G, per_group, length).reshape(B * G, per_group, -1)
    entry = torch.arange(B * G)
    place = positions_B.repeat_interleave(G)
    hidden = F.embedding(tokens_B, weights.embed_V_D)
    for index, layer in enumerate(weights.layers):
        qkv = F.linear(_rms_norm(hidden, layer.input_norm_D, config.norm_eps), layer.qkv)
        q, k, v = _heads(config, layer, qkv.view(B, -1, K), cos, sin)
        keys, values = cache.keys[index], cache.values[index]
        keys[entry, :, place] = k.reshape(B * G, K)
        values[entry, place] = v.reshape(B * G, K)
        scores = torch.baddbmm(
            mask,
            q.reshape(B * G, per_group, K),
            keys[: B * G, :, :length],
            alpha=K**-0.5,
        )
        mixed = torch.bmm(scores.softmax(-1), values[: B * G, :length])
        hidden = hidden + F.linear(mixed.view(B, -1), layer.attn_out)
        hidden = hidden + _mlp(config, layer, hidden)
    return F.linear(_rms_norm(hidden, weights.final_norm_D, config.norm_eps), weights.unembed_V_D)


def _heads(
    config: DecoderConfig, layer: LayerWeights, qkv: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Split the fused projection `[..., H + 2G, K]`; normalise and rotate queries and keys."""
    rotated = config.heads + config.kv_heads
    qk, v = qkv[..., :rotated, :], qkv[..., rotated:, :]
    if layer.qk_scale_HK is not None:
        qk = F.rms_norm(qk, (config.head_width,), eps=config.norm_eps) * layer.qk_scale_HK
    swapped = qk.reshape(*qk.shape[:-1], 2, -1).flip(-2).view_as(qk)
    qk = torch.addcmul(qk * cos, swapped, sin)
    return qk[..., : config.heads, :], qk[..., config.heads :, :], v


def _mlp(config: DecoderConfig, layer: LayerWeights, hidden: Tensor) -> Tensor:
    """The gated feed-forward half of a block."""
    both = F.linear(_rms_norm(hidden, layer.mlp_norm_D, config.norm_eps), layer.gate_up)
    gate, up = both.chunk(2, -1)
    return F.linear(F.silu(gate) * up, layer.down)


def _rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight_D.shape, weight_D, eps)


def _rescaled(inverse: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: slow frequencies are divided by the factor, those between are interpolated."""
    wavelength = 2 * math.pi / inverse
    low = scaling.original_positions / scaling.low_freq_factor
    high = scaling.original_positions / scaling.high_freq_factor
    smooth = (scaling.original_positions / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - smooth) * inverse / scaling.factor + smooth * inverse
    return torch.where(
        wavelength > low, inverse / scaling.factor, torch.where(wavelength < high, inverse, between)
    )
