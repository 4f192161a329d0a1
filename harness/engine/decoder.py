"""The decoder of the Qwen3, Qwen3.5 and Llama families, written for small batches on a CPU.

Projections that read the same input are fused (q, k and v; gate and up), so a layer is four matrix
products. The same weights serve two passes: `full_pass` over whole rows (training and prefill) and
`decode_step` over one token per row with a cache. Layers mix positions by attention or, in some
layers of Qwen3.5, by the gated delta rule (`delta_net`).

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

from harness.engine import delta_net

Kept = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RopeScaling:
    """The frequency rescaling of Llama 3.1 and later."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True)
class DeltaConfig:
    """The layers that carry a state along the row: which they are, their heads, their taps."""

    layers: frozenset[int]
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int

    @property
    def channels(self) -> int:
        """Width of all queries, keys and values together: what is convolved."""
        return 2 * self.key_heads * self.key_width + self.value_heads * self.value_width


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
    rotary_width: int
    output_gate: bool = False
    delta: DeltaConfig | None = None

    @property
    def q_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_width

    def is_delta(self, layer: int) -> bool:
        """Whether a layer mixes positions by the gated delta rule."""
        return self.delta is not None and layer in self.delta.layers

    def cache_bytes(self, capacity: int) -> int:
        """What one row of a cache takes: keys and values of attention, states of the rest."""
        d = self.delta
        if d is None:
            return 8 * self.layers * self.kv_width * capacity
        state = (d.taps - 1) * d.channels + d.value_heads * d.key_width * d.value_width
        attention = self.layers - len(d.layers)
        return 8 * attention * self.kv_width * capacity + 4 * len(d.layers) * state


@dataclass(frozen=True)
class DeltaWeights:
    """What a delta layer has beside its matrices: N value heads, C channels, W taps."""

    taps_C_W: Tensor
    step_bias_N: Tensor
    decay_N: Tensor
    norm_V: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One block. `qk_scale_HK` holds the per-head q and k norm weights, None without q/k norm.

    In a delta layer `qkv` makes q, k, v, the output gate, beta and the step, in this order. With an
    output gate, each query head of an attention layer is followed by its gate.
    """

    input_norm_D: Tensor
    qkv: Tensor
    qk_scale_HK: Tensor | None
    attn_out: Tensor
    mlp_norm_D: Tensor
    gate_up: Tensor
    down: Tensor
    delta: DeltaWeights | None = None


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
            LayerWeights(
                **{
                    **vars(layer),
                    **{n: matrices[f"{at}.{n}"] for n in MATRICES if f"{at}.{n}" in matrices},
                }
            )
            for at, layer in enumerate(self.layers)
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
        width = config.rotary_width
        exponent = torch.arange(0, width, 2, dtype=torch.float32) / width
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


class Cache:
    """What decoding keeps of up to `rows` rows: two tensors per layer.

    Attention: keys `[rows * G, K, capacity]` and values `[rows * G, capacity, K]`, each as the
    product of one query with a whole row reads it fastest. Delta layers: the last inputs of the
    convolution `[rows, W - 1, C]` and the state `[rows, N, K, V]`.
    """

    def __init__(self, config: DecoderConfig, rows: int, capacity: int) -> None:
        self.config, self.rows, self.capacity = config, rows, capacity
        self.entries = [
            self._delta_entry() if config.is_delta(layer) else self._attention_entry()
            for layer in range(config.layers)
        ]

    def write_row(self, row: int, kept: Kept, source: int, length: int) -> None:
        """Take over the first `length` positions of row `source` of a full pass."""
        g = self.config.kv_heads
        at = slice(row * g, (row + 1) * g)
        for layer, ((first, second), (a, b)) in enumerate(zip(self.entries, kept, strict=True)):
            if self.config.is_delta(layer):
                first[row], second[row] = a[source], b[source]
            else:
                first[at, :, :length] = a[source, :, :length].transpose(1, 2)
                second[at, :length] = b[source, :, :length]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another."""
        g = self.config.kv_heads
        to, of = slice(target * g, (target + 1) * g), slice(source * g, (source + 1) * g)
        for layer, (first, second) in enumerate(self.entries):
            if self.config.is_delta(layer):
                first[target], second[target] = first[source], second[source]
            else:
                first[to, :, :length] = first[of, :, :length]
                second[to, :length] = second[of, :length]

    def grown(self, rows: int, capacity: int) -> Cache:
        """A larger cache with the same content."""
        larger = Cache(self.config, rows, capacity)
        for new, old in zip(larger.entries, self.entries, strict=True):
            for to, of in zip(new, old, strict=True):
                to[tuple(slice(side) for side in of.shape)] = of
        return larger

    def _attention_entry(self) -> tuple[Tensor, Tensor]:
        entries, K = self.rows * self.config.kv_heads, self.config.head_width
        return torch.zeros(entries, K, self.capacity), torch.zeros(entries, self.capacity, K)

    def _delta_entry(self) -> tuple[Tensor, Tensor]:
        d = _delta(self.config)
        state = (self.rows, d.value_heads, d.key_width, d.value_width)
        return torch.zeros(self.rows, d.taps - 1, d.channels), torch.zeros(state)


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
    length: int,
) -> Tensor:
    """One more token for each of the cache's first B rows: logits `[B, V]`.

    `length` is at least the largest position plus one. A row's result depends neither on `length`
    nor on B (see `sampler`): masked positions add exact zeros.
    """
    B, G = len(tokens_B), config.kv_heads
    per_group = config.heads // G
    cos, sin = rope.cos_T_K[positions_B, None, :], rope.sin_T_K[positions_B, None, :]
    ahead_B_L = torch.arange(length)[None, :] > positions_B[:, None]
    mask_B_L = torch.zeros(B, length).masked_fill_(ahead_B_L, -math.inf)
    mask = mask_B_L[:, None, None, :].expand(B, G, per_group, length).reshape(B * G, per_group, -1)
    place = positions_B.repeat_interleave(G)
    hidden = F.embedding(tokens_B, weights.embed_V_D)
    for index, layer in enumerate(weights.layers):
        x = F.linear(_rms_norm(hidden, layer.input_norm_D, config.norm_eps), layer.qkv)
        if config.is_delta(index):
            mixed = _delta_one(config, layer, x, cache.entries[index])
        else:
            mixed = _attend_one(config, layer, x, cos, sin, cache.entries[index], place, mask)
        hidden = hidden + F.linear(mixed, layer.attn_out)
        hidden = hidden + _mlp(config, layer, hidden)
    return F.linear(_rms_norm(hidden, weights.final_norm_D, config.norm_eps), weights.unembed_V_D)


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
    place: Tensor,
    mask: Tensor,
) -> Tensor:
    """Attention of one position per row to its row so far: `[B, H * K]`."""
    B, G, K, length = len(x), config.kv_heads, config.head_width, mask.shape[-1]
    q, k, v, gate = _heads(config, layer, x.view(B, -1, K), cos, sin)
    keys, values = entry
    rows = torch.arange(B * G)
    keys[rows, :, place] = k.reshape(B * G, K)
    values[rows, place] = v.reshape(B * G, K)
    q = q.reshape(B * G, config.heads // G, K)
    scores = torch.baddbmm(mask, q, keys[: B * G, :, :length], alpha=K**-0.5)
    mixed = torch.bmm(scores.softmax(-1), values[: B * G, :length]).view(B, -1)
    return mixed if gate is None else mixed * gate.flatten(-2).sigmoid()


def _delta_rows(
    config: DecoderConfig, layer: LayerWeights, x: Tensor, lengths_B: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The gated delta rule over rows: outputs `[B, T, N * V]`, last inputs and state."""
    d, own = _delta(config), _delta_weights(layer)
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
    d, own = _delta(config), _delta_weights(layer)
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
    d = _delta(config)
    gate = x[..., d.channels : d.channels + d.value_heads * d.value_width]
    out = _rms_norm(out, own.norm_V, config.norm_eps)
    return out.flatten(-2) * F.silu(gate)


def _delta(config: DecoderConfig) -> DeltaConfig:
    if config.delta is None:
        raise AssertionError("a model without delta layers has no DeltaConfig")
    return config.delta


def _delta_weights(layer: LayerWeights) -> DeltaWeights:
    if layer.delta is None:
        raise AssertionError("an attention layer has no DeltaWeights")
    return layer.delta


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
