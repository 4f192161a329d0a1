"""The token losses of a Tinker service. Each returns one value per token; a loss is their sum.

lp: log-probability of the target under the policy being trained; q: `logprobs` as sampled;
A: `advantages`; w: `weights`; r = exp(lp - q). Formulas: Tinker's documentation of its losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.engine.errors import RequestError

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


@dataclass(frozen=True)
class Loss:
    """One loss: what a datum must carry beside `target_tokens`, and which knobs it knows."""

    inputs: tuple[str, ...]
    defaults: Config
    per_token: Callable[[Tensor, Inputs, Config], Tensor]


def cross_entropy(lp: Tensor, inputs: Inputs, _config: Config) -> Tensor:
    """-w lp"""
    return -lp * inputs["weights"]


def importance_sampling(lp: Tensor, inputs: Inputs, _config: Config) -> Tensor:
    """-r A"""
    return -torch.exp(lp - inputs["logprobs"]) * inputs["advantages"]


def ppo(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-min(r A, clamp(r, low, high) A); the thresholds bound the ratio itself."""
    ratio, advantages = torch.exp(lp - inputs["logprobs"]), inputs["advantages"]
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -torch.minimum(ratio * advantages, clipped * advantages)


def cispo(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-clamp(r, low, high) lp A, the clamped ratio held constant."""
    ratio = torch.exp(lp.detach() - inputs["logprobs"])
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -clipped * lp * inputs["advantages"]


def dro(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-(lp A - beta/2 (lp - q)²), on every token of the datum, prompt included."""
    gap = lp - inputs["logprobs"]
    return -(lp * inputs["advantages"] - 0.5 * config["beta"] * gap * gap)


_RL = ("logprobs", "advantages")
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(("weights",), {}, cross_entropy),
    "importance_sampling": Loss(_RL, {}, importance_sampling),
    "ppo": Loss(_RL, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, ppo),
    "cispo": Loss(_RL, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}, cispo),
    "dro": Loss(_RL, {"beta": 0.05}, dro),
}


def resolve(name: str, config: Config) -> tuple[Loss, Config]:
    """The loss and its knobs, defaults filled in.

    Raises RequestError for an unknown loss, an unknown knob, or a value that is not finite.
    """
    if name not in LOSSES:
        raise RequestError(f"loss_fn {name!r} is unknown; served: {', '.join(LOSSES)}")
    loss = LOSSES[name]
    unknown = sorted(set(config) - set(loss.defaults))
    if unknown:
        known = ", ".join(loss.defaults) or "none"
        raise RequestError(
            f"loss_fn_config key {unknown[0]!r} is unknown to {name}; known: {known}"
        )
    values = {**loss.defaults, **config}
    for key, value in values.items():
        if value != value or value in (float("inf"), float("-inf")):
            raise RequestError(f"loss_fn_config {key} = {value}; it must be finite")
    low, high = values.get("clip_low_threshold", 0.0), values.get("clip_high_threshold", 0.0)
    if low > high:
        raise RequestError(f"clip_low_threshold {low} exceeds clip_high_threshold {high}")
    return loss, values
