"""The state folder: checkpoints and sampler weights that outlive the engine.

    <root>/lock                                     held by the engine that uses the folder
    <root>/runs/<model_id>/run.json                 what the model is
    <root>/runs/<model_id>/weights/<name>.safetensors          adapter and optimizer moments
    <root>/runs/<model_id>/sampler_weights/<name>.safetensors  adapter only
    …/<name>.expires                                when it may be deleted, where a TTL was given

A file appears whole or not at all: it is written under a temporary name, flushed to the disk and
renamed. Names come from clients, so they are matched against a pattern without separators.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from harness.engine.errors import RequestError, StateError

KINDS = {"weights": "training", "sampler_weights": "sampler"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,149}")
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_-]{0,149}")


@dataclass(frozen=True)
class CheckpointPath:
    """A checked `tinker://<model_id>/<kind>/<name>`."""

    model_id: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"

    @staticmethod
    def parse(path: str) -> CheckpointPath:
        """Raises RequestError for anything but three well-formed parts."""
        parts = path.removeprefix("tinker://").split("/")
        if not path.startswith("tinker://") or len(parts) != 3:
            raise RequestError(
                f"path {path[:200]!r}; it must read tinker://<run>/weights/<name> "
                "or tinker://<run>/sampler_weights/<name>"
            )
        return CheckpointPath.of(*parts)

    @staticmethod
    def of(model_id: str, kind: str, name: str) -> CheckpointPath:
        """Raises RequestError for a part that could lead out of the state folder."""
        if not _MODEL_ID.fullmatch(model_id):
            raise RequestError(f"training run {model_id[:200]!r} is not a valid name")
        if kind not in KINDS:
            raise RequestError(f"checkpoint kind {kind[:200]!r}; it is one of {', '.join(KINDS)}")
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"checkpoint name {name[:200]!r}; allowed are up to 150 of A-Z a-z 0-9 . _ = + - "
                "beginning with a letter or digit"
            )
        return CheckpointPath(model_id, kind, name)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint on disk; times are seconds since the epoch."""

    path: CheckpointPath
    time: float
    size: int
    expires: float | None


class StateFolder:
    """The only code that touches the state folder."""

    def __init__(self, root: Path) -> None:
        """Raises StateError if another engine uses the folder or it can't be written."""
        self.root = root
        try:
            self._runs = root / "runs"
            self._runs.mkdir(parents=True, exist_ok=True)
            self._lock = (root / "lock").open("a+")
        except OSError as error:
            raise StateError(f"state folder {root}: {error.strerror}; choose another") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(
                f"state folder {root} is in use by another engine; stop it or choose another folder"
            ) from None
        self._sweep()

    def close(self) -> None:
        """Give the folder free."""
        self._lock.close()

    def write_run(self, model_id: str, facts: Mapping[str, object]) -> None:
        """Record what a model is."""
        CheckpointPath.of(model_id, "weights", "x")
        self._write(self._runs / model_id / "run.json", json.dumps(facts).encode())

    def read_run(self, model_id: str) -> dict[str, object]:
        """What a model is. Raises RequestError if there is no such run."""
        CheckpointPath.of(model_id, "weights", "x")
        try:
            found: dict[str, object] = json.loads((self._runs / model_id / "run.json").read_text())
        except (OSError, ValueError):
            raise RequestError(f"training run {model_id!r} does not exist") from None
        return found

    def run_ids(self) -> list[str]:
        """All recorded runs, oldest first."""
        found = [(p.stat().st_mtime, p.parent.name) for p in self._runs.glob("*/run.json")]
        return [name for _, name in sorted(found)]

    def write(
        self,
        path: CheckpointPath,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, str],
        ttl_seconds: int | None,
    ) -> None:
        """Store a checkpoint, replacing one of the same name."""
        self.set_ttl(path, ttl_seconds, must_exist=False)
        self._write(self._file(path), save(dict(tensors), dict(facts)))

    def read(self, path: CheckpointPath) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and facts of a checkpoint. Raises RequestError if it is missing or damaged."""
        self._require(path)
        try:
            with safe_open(self._file(path), framework="pt") as reader:
                names = reader.keys()
                return {name: reader.get_tensor(name) for name in names}, reader.metadata() or {}
        except Exception as error:
            raise RequestError(f"{path} can't be read: {error}") from None

    def facts(self, path: CheckpointPath) -> dict[str, str]:
        """The facts of a checkpoint without its tensors. Raises RequestError as `read` does."""
        self._require(path)
        try:
            with safe_open(self._file(path), framework="pt") as reader:
                return reader.metadata() or {}
        except Exception as error:
            raise RequestError(f"{path} can't be read: {error}") from None

    def checkpoints(self, model_id: str) -> list[StoredCheckpoint]:
        """The checkpoints of a run that have not expired, oldest first."""
        CheckpointPath.of(model_id, "weights", "x")
        found = []
        for kind in KINDS:
            for file in (self._runs / model_id / kind).glob("*.safetensors"):
                path = CheckpointPath(model_id, kind, file.name.removesuffix(".safetensors"))
                expires = self._expires(path)
                if expires is not None and expires <= time.time():
                    self.delete(path)
                    continue
                stat = file.stat()
                found.append(StoredCheckpoint(path, stat.st_mtime, stat.st_size, expires))
        return sorted(found, key=lambda c: (c.time, str(c.path)))

    def exists(self, path: CheckpointPath) -> bool:
        """Whether the checkpoint is there and has not expired."""
        expires = self._expires(path)
        return self._file(path).exists() and (expires is None or expires > time.time())

    def delete(self, path: CheckpointPath) -> None:
        """Remove a checkpoint. Raises RequestError if it does not exist."""
        try:
            self._file(path).unlink()
        except FileNotFoundError:
            raise RequestError(f"{path} does not exist") from None
        self._file(path).with_suffix(".expires").unlink(missing_ok=True)

    def set_ttl(
        self, path: CheckpointPath, ttl_seconds: int | None, must_exist: bool = True
    ) -> None:
        """Let a checkpoint expire `ttl_seconds` from now; None keeps it for good."""
        if must_exist:
            self._require(path)
        sidecar = self._file(path).with_suffix(".expires")
        if ttl_seconds is None:
            sidecar.unlink(missing_ok=True)
        else:
            self._write(sidecar, json.dumps(time.time() + ttl_seconds).encode())

    def _require(self, path: CheckpointPath) -> None:
        if not self.exists(path):
            raise RequestError(f"{path} does not exist (or has expired)")

    def _expires(self, path: CheckpointPath) -> float | None:
        try:
            return float(self._file(path).with_suffix(".expires").read_text())
        except (OSError, ValueError):
            return None

    def _file(self, path: CheckpointPath) -> Path:
        # a name may hold dots, so the suffix is appended, never exchanged
        return self._runs / path.model_id / path.kind / f"{path.name}.safetensors"

    def _write(self, target: Path, content: bytes) -> None:
        """Whole or not at all. Raises StateError with nothing left behind."""
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            hint = "free some space" if error.errno == errno.ENOSPC else "check the folder"
            raise StateError(f"{target} can't be written: {error.strerror}; {hint}") from None

    def _sweep(self) -> None:
        """Remove what a killed engine left half-written, and what has expired."""
        for temporary in self._torn():
            temporary.unlink(missing_ok=True)
        for model_id in self.run_ids():
            self.checkpoints(model_id)

    def _torn(self) -> Iterator[Path]:
        yield from self._runs.glob("*/.*.tmp")
        yield from self._runs.glob("*/*/.*.tmp")
