"""The store's folder: its format and its entries."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from harness.errors import StoreError, StoreVersionError
from harness.store import files
from harness.store.entry import Entry
from harness.store.keys import check_name, content_key, plain_parts

FORMAT = 1
"""Raised when an older harness could no longer read what this one writes."""

_KEY_DIGITS = 16  # of 64: two of a thousand entries meet with odds of 1 in 10^13


class RunStore:
    """A folder of entries.

        store.json                  {"format": 1}
        entries/<name>/@<key>/      one entry; see `harness.store.entry`

    Raises StoreVersionError if a newer harness wrote it, StoreError if it can't be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root).absolute()
        path = self.root / "store.json"
        files.make_folder(self.root)
        if not path.exists():
            files.write_atomic(path, orjson.dumps({"format": FORMAT}))
        _check_format(path)
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise StoreError(f"can't write to {self.root}: choose another --runs-dir")
        self._entries = self.root / "entries"

    def entry(self, name: str, parts: Mapping[str, Any]) -> Entry:
        """Return the entry called `name` whose content key is that of `parts`; writes nothing yet.

        name: as "arm/treatment_seed0". parts: all that its records depend on, and nothing else.
        """
        key = content_key(parts)
        folder = self._entries / check_name(name) / f"@{key[:_KEY_DIGITS]}"
        return Entry(folder, name, key, plain_parts(parts))

    def entries(self, name: str | None = None) -> list[Entry]:
        """Return all entries, or those called `name`, by name and then oldest first."""
        base = self._entries if name is None else self._entries / check_name(name)
        pattern = "**/@*/key.json" if name is None else "@*/key.json"
        found = []
        for path in base.glob(pattern):
            with files.storage_errors("read", path):
                try:
                    about = orjson.loads(path.read_bytes())
                except orjson.JSONDecodeError:
                    files.log.warning("%s is corrupt: the entry beside it is not listed", path)
                    continue
            entry = Entry(path.parent, about["name"], about["key"], about["parts"])
            found.append((entry.name, about["created"], entry.key, entry))
        return [item[-1] for item in sorted(found, key=lambda item: item[:-1])]


def _check_format(path: Path) -> None:
    with files.storage_errors("read", path):
        data = path.read_bytes()
    try:
        found = orjson.loads(data)["format"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        found = None
    if type(found) is not int or found < 1:
        raise StoreError(f"{path} names no store format: choose another --runs-dir or remove it")
    if found > FORMAT:
        raise StoreVersionError(
            f"the run store {path.parent} has format {found}, this harness reads up to {FORMAT}: "
            "install the newer harness or choose another --runs-dir"
        )
