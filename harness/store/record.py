"""The record: what was registered, tried and found, one line each, in `record.jsonl` of a store.

Each line holds the hash of the line before, so that an edited, removed or reordered line shows.
What a killed process left of a line, without its end, was never a line. The hash of the last line
is the head: published before a run, it shows afterwards that nothing was taken back.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import filelock
import orjson
from pydantic import JsonValue

from harness.errors import StoreError
from harness.store import files

Kind = Literal["registered", "amended", "started", "resumed", "redrawn", "decided"]

FIRST = "0" * 64
"""What stands in the first line as the hash of the line before."""


@dataclass(frozen=True)
class Line:
    """One line. `experiment` is its id and scale, `facts` whatever else the kind has to say."""

    number: int
    at: str
    kind: str
    experiment: str
    facts: Mapping[str, JsonValue]
    sha256: str


class Record:
    """The record of the store at `root`."""

    def __init__(self, root: Path) -> None:
        self._path = root / "record.jsonl"
        self._lock = filelock.FileLock(root / "record.lock", fallback_to_soft=False)

    def lines(self) -> list[Line]:
        """Every line, in order.

        Raises:
            StoreError: the chain is broken; it names the first line that does not fit.
        """
        return read_chain(self._read(), self._path)

    def append(
        self,
        kind: Kind,
        experiment: str,
        facts: Mapping[str, JsonValue],
        unless: Callable[[Sequence[Line]], bool] = lambda _: False,
    ) -> list[Line]:
        """Put a line at the end and on the disk, unless the lines that there are say not to.

        Returns all lines. One process at a time writes; a line that another began and was killed in
        is removed first.

        Raises:
            StoreError: the chain is broken, or the line can't be written.
        """
        with self._locked():
            whole = self._read()
            lines = read_chain(whole, self._path)
            if unless(lines):
                return lines
            line = {
                "n": len(lines) + 1,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "kind": kind,
                "experiment": experiment,
                **facts,
                "before": lines[-1].sha256 if lines else FIRST,
            }
            data = orjson.dumps(line) + b"\n"
            with files.storage_errors("write", self._path), self._path.open("ab") as file:
                file.truncate(len(whole))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return read_chain(whole + data, self._path)

    def _read(self) -> bytes:
        """The whole lines that there are."""
        with files.storage_errors("read", self._path):
            data = self._path.read_bytes() if self._path.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with files.storage_errors("lock", self._path), self._lock:
            yield


def read_chain(data: bytes, path: Path) -> list[Line]:
    """The lines of a record, each held to the one before.

    Raises:
        StoreError: a line is no JSON object, has another number than its place, or does not hold
            the hash of the line before.
    """
    lines: list[Line] = []
    before = FIRST
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            read = orjson.loads(text)
            facts = dict(read)
            stated, continues = facts.pop("n"), facts.pop("before")
            at, kind, experiment = (str(facts.pop(key)) for key in ("at", "kind", "experiment"))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            raise _broken(path, number, "can't be read") from None
        if stated != number:
            raise _broken(path, number, f"is numbered {stated}: lines are missing or moved")
        if continues != before:
            raise _broken(path, number, "does not continue the line before, which was edited")
        before = hashlib.sha256(text).hexdigest()
        lines.append(Line(number, at, kind, experiment, facts, before))
    return lines


def _broken(path: Path, number: int, what: str) -> StoreError:
    return StoreError(
        f"{path}: line {number} {what}; restore the record, no verdict follows from this one"
    )
