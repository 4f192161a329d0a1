"""What a model of these families consists of: its numbers, and its weights.

Shapes: D width, H query heads, G key/value heads, K head width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor


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

    @property
    def delta_rule(self) -> DeltaConfig:
        """The numbers of the delta layers, in a model that has such layers."""
        if self.delta is None:
            raise AssertionError("a model without delta layers has no DeltaConfig")
        return self.delta

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

    @property
    def delta_rule(self) -> DeltaWeights:
        """What a delta layer has beside its matrices."""
        if self.delta is None:
            raise AssertionError("an attention layer has no DeltaWeights")
        return self.delta


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
