"""What a checkpoint holds: an adapter as PEFT names it, the optimizer, the facts to check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime

import torch
from torch import Tensor

from harness.engine.errors import RequestError
from harness.engine.lora import LoraConfig, LoraLayout
from harness.engine.state import KINDS, CheckpointPath, StateFolder, StoredCheckpoint
from harness.engine.trainer import Moments, Trainee


def sampler_tensors(trainee: Trainee) -> dict[str, Tensor]:
    """The adapter alone; copies, so that training may go on."""
    found = {}
    for target, a, b in trainee.layout.views(trainee.flat):
        found[f"base_model.model.{target.name}.lora_A.weight"] = a.clone()
        found[f"base_model.model.{target.name}.lora_B.weight"] = b.clone()
    return found


def training_tensors(trainee: Trainee) -> dict[str, Tensor]:
    """The adapter and the moments of the optimizer."""
    return {
        **sampler_tensors(trainee),
        "optimizer.exp_avg": trainee.exp_avg,
        "optimizer.exp_avg_sq": trainee.exp_avg_sq,
    }


def facts(base_model: str, lora: LoraConfig, step: int) -> dict[str, str]:
    """What a checkpoint says about itself, beside its tensors."""
    return {
        "base_model": base_model,
        "optim_step": str(step),
        **{key: str(value) for key, value in asdict(lora).items()},
    }


def stored_lora(state: StateFolder, path: CheckpointPath, base_model: str) -> LoraConfig:
    """The LoRA config of a checkpoint. Raises RequestError if it is of another base model."""
    found = state.facts(path)
    check_base(path, found, base_model)
    return LoraConfig(
        rank=int(found["rank"]),
        seed=int(found["seed"]),
        train_unembed=found["train_unembed"] == "True",
        train_mlp=found["train_mlp"] == "True",
        train_attn=found["train_attn"] == "True",
    )


def check_base(path: CheckpointPath, found: Mapping[str, str], base_model: str) -> None:
    """Raises RequestError if a checkpoint is of another base model."""
    if found.get("base_model") != base_model:
        raise RequestError(
            f"{path} was trained from {found.get('base_model')!r}; served is {base_model!r}"
        )


def flat_adapter(layout: LoraLayout, tensors: Mapping[str, Tensor], path: CheckpointPath) -> Tensor:
    """The inverse of `sampler_tensors`. Raises RequestError if the checkpoint does not fit."""
    flat = torch.empty(layout.size)
    for target, a, b in layout.views(flat):
        for name, view in (("lora_A", a), ("lora_B", b)):
            stored = tensors.get(f"base_model.model.{target.name}.{name}.weight")
            if stored is None or stored.shape != view.shape:
                raise RequestError(
                    f"{path} does not fit: {target.name} {name} is "
                    f"{'missing' if stored is None else tuple(stored.shape)}, "
                    f"the model needs {tuple(view.shape)}"
                )
            view.copy_(stored)
    return flat


def moments(
    tensors: Mapping[str, Tensor], found: Mapping[str, str], path: CheckpointPath
) -> Moments:
    """The optimizer of a training checkpoint. Raises RequestError if it holds none."""
    if "optimizer.exp_avg" not in tensors:
        raise RequestError(f"{path} holds no optimizer state; load it without")
    return Moments(
        tensors["optimizer.exp_avg"], tensors["optimizer.exp_avg_sq"], int(found["optim_step"])
    )


def listed(stored: StoredCheckpoint) -> dict[str, object]:
    """A checkpoint as the SDK lists it."""
    expires = stored.expires
    return {
        "checkpoint_id": f"{stored.path.kind}/{stored.path.name}",
        "checkpoint_type": KINDS[stored.path.kind],
        "time": datetime.fromtimestamp(stored.time, UTC).isoformat(),
        "tinker_path": str(stored.path),
        "size_bytes": stored.size,
        "public": False,
        "expires_at": None if expires is None else datetime.fromtimestamp(expires, UTC).isoformat(),
    }
