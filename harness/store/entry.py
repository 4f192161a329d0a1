"""One entry: the records of an arm, an evaluation or whatever else a key stands for.

@<key>/
  key.json       name, key and the parts it was made from, for people
  lock           held by the process that produces; the system frees it when the holder dies
  progress.json  the live line, replaced often
  attempts/      one record per start
  records/       one file per kind or step, and `complete`, which is written last
"""

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import filelock
import orjson

from harness.errors import StoreError
from harness.store import files
from harness.store.codec import dumps, encode, to_json
from harness.store.keys import refuse_secrets

_SUFFIX = ".json.zst"
_KIND = re.compile(r"[a-z][a-z0-9_]*")
_STEP = re.compile(r"step-(\d{6,})\.json\.zst")
_ATTEMPT = re.compile(r"(\d{4,})\.json\.zst")
_COMPLETE = f"complete{_SUFFIX}"


@dataclass(frozen=True)
class Attempt:
    """One start of an entry. A process that died leaves `started` behind."""

    number: int
    run: str
    """The run that started it, the same for all workers of one run."""
    status: Literal["started", "finished", "failed"]
    pid: int
    started_at: float
    """Seconds since the epoch, as `ended_at`."""
    ended_at: float | None = None
    error_type: str | None = None
    error: str | None = None
    info: Any = None


class Entry:
    """Records under one name and key. Reading needs no lock; whoever produces should hold it."""

    def __init__(self, folder: Path, name: str, key: str, parts: Mapping[str, Any]) -> None:
        self.folder = folder
        self.name = name
        self.key = key
        self.parts = parts
        self._records = folder / "records"
        self._attempts = folder / "attempts"

    def __repr__(self) -> str:
        return f"Entry({self.name!r}, {self.key[:16]})"

    # -- records: one file each, whole or absent ---------------------------------------------

    def read(self, kind: str) -> Any:  # the caller knows its own records
        """Return what was published as `kind`, or None: never published, or found corrupt."""
        return files.read_record(self._records / _kind_file(kind))

    def publish(self, kind: str, value: object) -> None:
        """Store `value` as `kind`, replacing what was there; durable when this returns."""
        self._write(self._records, _kind_file(kind), value)

    def read_step(self, step: int) -> Any:  # the caller knows its own records
        """Return the record of `step`, or None: never published, or found corrupt."""
        return files.read_record(self._records / _step_file(step))

    def publish_step(self, step: int, value: object) -> None:
        """Store the record of `step` (0 or more), replacing an earlier one of the same step."""
        self._write(self._records, _step_file(step), value)

    def steps(self) -> list[int]:
        """Return the steps that have a record, in order."""
        matches = map(_STEP.fullmatch, files.list_names(self._records))
        return sorted(int(match[1]) for match in matches if match)

    # -- the commit point --------------------------------------------------------------------

    def finish(self, summary: object = None) -> None:
        """Mark the entry complete, vouching for every record that is there now."""
        names = sorted(filter(_is_record, files.list_names(self._records)))
        self._write(self._records, _COMPLETE, {"summary": summary, "records": names})

    @property
    def is_complete(self) -> bool:
        """Whether `finish` was called and every record that it vouched for is still there."""
        marker = files.read_record(self._records / _COMPLETE)
        return marker is not None and files.list_names(self._records).issuperset(marker["records"])

    def is_sound(self) -> bool:
        """Like `is_complete`, after reading every record: a corrupt one is set aside and missed."""
        if self.is_complete:
            for name in filter(_is_record, files.list_names(self._records)):
                files.read_record(self._records / name)
        return self.is_complete

    def summary(self) -> Any:  # the caller knows its own records
        """Return what `finish` was given, or None."""
        marker = files.read_record(self._records / _COMPLETE)
        return None if marker is None else marker["summary"]

    def clear(self) -> None:
        """Forget all records at once and for good; attempts stay. Hold the lock."""
        with files.storage_errors("clear", self._records):
            for name in files.list_names(self.folder):
                if name.startswith("cleared-"):  # an earlier clear was killed half-way
                    shutil.rmtree(self.folder / name, ignore_errors=True)
            cleared = self.folder / f"cleared-{uuid.uuid4().hex}"
            with suppress(FileNotFoundError):
                self._records.rename(cleared)
                files.sync_folder(self.folder)
                shutil.rmtree(cleared, ignore_errors=True)
            (self.folder / "progress.json").unlink(missing_ok=True)

    # -- who produces, and how often it was tried --------------------------------------------

    @contextmanager
    def lock(self, block: bool = False) -> Iterator[bool]:
        """Hold the entry for one producer; yield whether it was had.

        block: wait for the holder to finish or die instead of yielding False at once.
        The lock is the system's own, so a killed holder's is free, whatever file it left.
        """
        self._open()
        lock = _acquire(self.folder / "lock", block)
        if lock is None:
            yield False
            return
        try:
            for folder in (self.folder, self._records, self._attempts):
                files.sweep(folder)
            yield True
        finally:
            lock.release()

    @contextmanager
    def attempt(self, run: str, info: object = None) -> Iterator[Attempt]:
        """Record that `run` starts to produce this entry, and how it ended. Hold the lock.

        An Exception is recorded as failed and goes on; an interrupt or a kill leaves `started`.
        """
        plain = to_json(info, "attempt info")
        refuse_secrets(plain, "attempt info")
        number = 1 + max((attempt.number for attempt in self.attempts()), default=0)
        attempt = Attempt(number, run, "started", os.getpid(), time.time(), info=plain)
        self._write_attempt(attempt)
        try:
            yield attempt
        except Exception as error:
            failed = replace(
                attempt,
                status="failed",
                ended_at=time.time(),
                error_type=type(error).__name__,
                error=str(error),
            )
            with suppress(StoreError):  # a full disk must not hide what went wrong
                self._write_attempt(failed)
            raise
        self._write_attempt(replace(attempt, status="finished", ended_at=time.time()))

    def attempts(self) -> list[Attempt]:
        """Return every attempt so far, in order."""
        names = sorted(filter(_ATTEMPT.fullmatch, files.list_names(self._attempts)))
        records = (files.read_record(self._attempts / name) for name in names)
        return [Attempt(**record) for record in records if record is not None]

    # -- the live line -----------------------------------------------------------------------

    def progress(self, value: object) -> None:
        """Replace the live line: whole for every reader, but not flushed to the disk."""
        self._open()
        what = f"{self.name} progress"
        data = dumps(to_json(value, what), what)
        files.write_atomic(self.folder / "progress.json", data, durable=False)

    def read_progress(self) -> Any:  # the caller knows its own records
        """Return the last live line, or None."""
        try:
            return orjson.loads((self.folder / "progress.json").read_bytes())
        except (OSError, orjson.JSONDecodeError):  # it is only for show
            return None

    # ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Create the folder, and what it is for, before anything else is put there."""
        path = self.folder / "key.json"
        if not path.exists():
            files.make_folder(self._records)
            files.make_folder(self._attempts)
            about = {
                "name": self.name,
                "key": self.key,
                "created": time.time(),
                "parts": self.parts,
            }
            files.write_atomic(path, dumps(about, "key.json", orjson.OPT_INDENT_2))

    def _write(self, folder: Path, name: str, value: object) -> None:
        data = encode(value, f"{self.name} {name.removesuffix(_SUFFIX)}")
        self._open()
        files.make_folder(folder)  # `clear` took it away
        files.write_atomic(folder / name, data)

    def _write_attempt(self, attempt: Attempt) -> None:
        self._write(self._attempts, f"{attempt.number:04d}{_SUFFIX}", asdict(attempt))


def _acquire(path: Path, block: bool) -> filelock.BaseFileLock | None:
    lock = filelock.FileLock(path, fallback_to_soft=False)
    with files.storage_errors("lock", path):
        try:
            lock.acquire(blocking=block)
        except filelock.Timeout:
            return None
        except NotImplementedError:
            raise StoreError(
                f"can't lock {path}: its file system has no locks. Choose another --runs-dir"
            ) from None
    return lock


def _kind_file(kind: str) -> str:
    if not _KIND.fullmatch(kind) or kind == "complete":
        raise StoreError(
            f"record kind {kind!r} is not allowed: use lower-case letters, digits and '_', "
            "beginning with a letter, and not 'complete'"
        )
    return f"{kind}{_SUFFIX}"


def _step_file(step: int) -> str:
    if step < 0:
        raise StoreError(f"step {step} is below 0: steps count from 0")
    return f"step-{step:06d}{_SUFFIX}"


def _is_record(name: str) -> bool:
    return name.endswith(_SUFFIX) and name != _COMPLETE
