"""A sampler checkpoint as a PEFT adapter, and the short-lived links it is downloaded by."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from harness.engine.lora import ALPHA
from harness.engine.state import CheckpointPath

LINK_SECONDS = 900.0


def peft_archive(tensors: Mapping[str, Tensor], base: Path) -> bytes:
    """A tar of adapter_config.json and adapter_model.safetensors, as PEFT loads it."""
    adapter = {name: t for name, t in tensors.items() if name.startswith("base_model.")}
    modules = sorted({name.split(".lora_")[0].split(".")[-1] for name in adapter})
    rank = next(len(t) for name, t in adapter.items() if ".lora_A." in name)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
        "inference_mode": True,
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in (
            ("adapter_config.json", json.dumps(config, indent=2).encode()),
            ("adapter_model.safetensors", save(adapter)),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Links:
    """Random names under which a checkpoint can be fetched without a key for `LINK_SECONDS`."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[CheckpointPath, float]] = {}

    def make(self, path: CheckpointPath) -> str:
        """A new link's name."""
        now = time.time()
        self._open = {name: entry for name, entry in self._open.items() if entry[1] > now}
        name = secrets.token_urlsafe(32)
        self._open[name] = (path, now + LINK_SECONDS)
        return name

    def find(self, name: str) -> CheckpointPath | None:
        """The checkpoint behind a link that has not expired."""
        path, expires = self._open.get(name, (None, 0.0))
        return path if expires > time.time() else None
