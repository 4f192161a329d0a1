"""LoRA by merged matrices: W' = W + (32 / rank) B A.

The trained values of an adapter live in one flat vector (optimizers and checkpoints need nothing
else); A and B of every target are views of it. The passes run on merged copies W', so neither
sampling nor training pays for the low-rank products; the gradient of W' is carried over to A and B
once per optimizer step:  dA = s Bᵀ dW',  dB = s dW' Aᵀ  (s = 32 / rank).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.architecture import DecoderConfig, Weights
from harness.engine.errors import RequestError
from harness.engine.seeds import stream

ALPHA = 32.0
MAX_RANK = 1024


@dataclass(frozen=True)
class LoraConfig:
    """What a client may choose about an adapter."""

    rank: int = 32
    seed: int = 0
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    def problems(self) -> list[str]:
        """What is wrong with these values, one line each."""
        found = []
        if not 1 <= self.rank <= MAX_RANK:
            found.append(f"lora_config.rank = {self.rank}; it must lie in 1..{MAX_RANK}")
        if not (self.train_unembed or self.train_mlp or self.train_attn):
            found.append("lora_config trains nothing: set train_attn, train_mlp or train_unembed")
        return found


@dataclass(frozen=True)
class Target:
    """One projection with an adapter: rows `start:stop` of the fused matrix called `matrix`."""

    name: str
    matrix: str
    start: int
    stop: int
    inputs: int

    @property
    def outputs(self) -> int:
        """Rows of the projection."""
        return self.stop - self.start


class LoraLayout:
    """Where each A and B lies in the flat vector; equal for equal model and LoRA config."""

    def __init__(self, model: DecoderConfig, lora: LoraConfig) -> None:
        problems = lora.problems()
        if problems:
            raise RequestError("; ".join(problems))
        self.lora = lora
        self.scale = ALPHA / lora.rank
        self.targets = tuple(_targets(model, lora))
        self.size = sum(lora.rank * (t.inputs + t.outputs) for t in self.targets)
        self.matrices = tuple(dict.fromkeys(t.matrix for t in self.targets))

    def views(self, flat: Tensor) -> Iterator[tuple[Target, Tensor, Tensor]]:
        """Each target with its A `[rank, inputs]` and B `[outputs, rank]` as views of `flat`."""
        rank, at = self.lora.rank, 0
        for target in self.targets:
            a = flat[at : at + rank * target.inputs].view(rank, target.inputs)
            at += a.numel()
            b = flat[at : at + rank * target.outputs].view(target.outputs, rank)
            at += b.numel()
            yield target, a, b

    def fresh(self) -> Tensor:
        """A new adapter: A uniform in ±1/sqrt(inputs) from the stream of its seed, B zero."""
        flat = torch.zeros(self.size)
        for target, a, _ in self.views(flat):
            bound = 1 / math.sqrt(target.inputs)
            values = stream("lora-init", self.lora.seed, target.name).uniform(
                -bound, bound, tuple(a.shape)
            )
            a.copy_(torch.from_numpy(values))
        return flat

    @torch.no_grad()
    def merge(self, base: Weights, flat: Tensor, out: dict[str, Tensor] | None = None) -> Weights:
        """The model with this adapter merged in; `out` holds matrices to write into, by name."""
        matrices = out if out is not None else {}
        for name in self.matrices:
            source = base.matrix(name)
            if name in matrices:
                matrices[name].copy_(source)
            else:
                matrices[name] = source.clone()
        for target, a, b in self.views(flat):
            matrices[target.matrix][target.start : target.stop].addmm_(b, a, alpha=self.scale)
        return base.replace(matrices)

    @torch.no_grad()
    def gradient(self, flat: Tensor, matrix_grads: dict[str, Tensor]) -> Tensor:
        """The gradient of the flat vector from the gradients of the merged matrices."""
        grad = torch.zeros_like(flat)
        for (target, a, b), (_, grad_a, grad_b) in zip(
            self.views(flat), self.views(grad), strict=True
        ):
            d = matrix_grads[target.matrix][target.start : target.stop]
            torch.mm(b.T, d, out=grad_a).mul_(self.scale)
            torch.mm(d, a.T, out=grad_b).mul_(self.scale)
        return grad


def _targets(model: DecoderConfig, lora: LoraConfig) -> Iterator[Target]:
    """Every adapted projection, named as Hugging Face names it."""
    for index in range(model.layers):
        at = f"model.layers.{index}."
        if lora.train_attn:
            yield from _mixer_targets(model, index, at)
        if lora.train_mlp:
            both, wide = f"{index}.gate_up", model.mlp_width
            yield Target(at + "mlp.gate_proj", both, 0, wide, model.width)
            yield Target(at + "mlp.up_proj", both, wide, 2 * wide, model.width)
            yield Target(at + "mlp.down_proj", f"{index}.down", 0, model.width, wide)
    if lora.train_unembed:
        yield Target("lm_head", "unembed", 0, model.vocab, model.width)


def _mixer_targets(model: DecoderConfig, index: int, at: str) -> Iterator[Target]:
    """The projections in front of and behind the mixing of positions, in their fused order."""
    if model.delta is not None and model.is_delta(index):
        d = model.delta
        values = d.value_heads * d.value_width
        widths = {"in_proj_qkv": d.channels, "in_proj_z": values}
        widths |= {"in_proj_b": d.value_heads, "in_proj_a": d.value_heads}
        at, out, mixed = at + "linear_attn.", "out_proj", values
    else:
        queries = model.q_width * (2 if model.output_gate else 1)
        widths = {"q_proj": queries, "k_proj": model.kv_width, "v_proj": model.kv_width}
        at, out, mixed = at + "self_attn.", "o_proj", model.q_width
    start = 0
    for name, width in widths.items():
        yield Target(at + name, f"{index}.qkv", start, start + width, model.width)
        start += width
    yield Target(at + out, f"{index}.attn_out", 0, model.width, mixed)
