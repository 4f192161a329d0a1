"""The task as a run takes it: questions, the index behind them, and where both come from."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import JsonValue

from harness.errors import DataError
from harness.tasks.sec_search.index import Retriever
from harness.tasks.sec_search.prepare import INDEX, MANIFEST, SPLIT_FILES, Selection, prepare
from harness.tasks.sec_search.records import CHUNK_FILES, QUERY_FILES, Query, query_of
from harness.tasks.sec_search.synthetic import World, write_raw

DATA_DIR_VARIABLE = "HARNESS_SEC_DIR"
HUB_NAME = "pat-jj/harness-1-train-data"


@dataclass(frozen=True)
class Source:
    """Where the data come from: `kind` is "published" or "synthetic", `detail` its path or seed."""

    kind: str
    detail: Mapping[str, JsonValue]

    @property
    def sentence(self) -> str:
        """The source as a report names it."""
        shown = ", ".join(f"{key} {value}" for key, value in sorted(self.detail.items()))
        return f"{self.kind} ({shown})"


@dataclass(frozen=True)
class SearchTask:
    """Questions of both splits in their fixed order, the index, and the source of both.

    `sha256s` has the keys train, test and corpus.
    """

    train: tuple[Query, ...]
    test: tuple[Query, ...]
    retriever: Retriever
    source: Source
    sha256s: Mapping[str, str]
    counts: Mapping[str, JsonValue]

    headline: ClassVar = "f4"

    @property
    def origin(self) -> str:
        """The source as a report names it."""
        return self.source.sentence


def published_task(raw: Path | None, prepared: Path, selection: Selection) -> SearchTask:
    """The task on the published data set, from a raw folder or HARNESS_SEC_DIR.

    Raises:
        DataError: there is no such folder, it is a synthetic one, or it can't be prepared.
    """
    named = raw or os.environ.get(DATA_DIR_VARIABLE)
    if not named or not Path(named).is_dir():
        where = f"is not at {named}" if named else f"was not named: {DATA_DIR_VARIABLE} is not set"
        raise DataError(
            f"the published data set {where}; point {DATA_DIR_VARIABLE} at a folder of {HUB_NAME} "
            f"that holds {QUERY_FILES} and {CHUNK_FILES}, or ask for synthetic data"
        )
    folder = Path(named)
    task = load_search_task(prepare(folder, prepared, selection))
    if task.source.kind != "published":
        raise DataError(f"{folder}: holds {task.source.sentence}; ask for synthetic data by name")
    return task


def synthetic_task(world: World, prepared: Path, selection: Selection) -> SearchTask:
    """The task on the synthetic corpus of `world`, whose raw folder stands beside `prepared`.

    Raises:
        DataError: the world has too few questions for the selection.
    """
    raw = write_raw(world, prepared.with_name(f"{prepared.name}.raw"))
    return load_search_task(prepare(raw, prepared, selection))


def load_search_task(prepared: Path) -> SearchTask:
    """The task of a prepared folder.

    Raises:
        DataError: a file is missing or does not have the hash that the manifest gives.
    """
    manifest = _read_manifest(prepared / MANIFEST)
    sha256s = {name: str(value) for name, value in manifest["sha256s"].items()}
    splits = {}
    for split, name in SPLIT_FILES.items():
        content = _read(prepared / name)
        expected = sha256s.get(split)
        if hashlib.sha256(content).hexdigest() != expected:
            raise DataError(f"{prepared / name}: is not what was prepared; prepare it again")
        splits[split] = tuple(query_of(orjson.loads(line)) for line in content.splitlines())
    retriever = Retriever(prepared / INDEX)
    if retriever.size != manifest["counts"].get("chunks"):
        raise DataError(
            f"{prepared / INDEX}: {retriever.size} chunks, the manifest says "
            f"{manifest['counts']['chunks']}; prepare it again"
        )
    detail = {key: value for key, value in manifest["source"].items() if key != "kind"}
    return SearchTask(
        splits["train"],
        splits["test"],
        retriever,
        Source(str(manifest["source"].get("kind")), detail),
        sha256s,
        manifest["counts"],
    )


def _read_manifest(path: Path) -> dict[str, dict[str, JsonValue]]:
    try:
        content = orjson.loads(_read(path))
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path}: is not JSON ({error}); prepare the folder again") from None
    if not isinstance(content, dict) or not {"sha256s", "counts", "source"} <= set(content):
        raise DataError(f"{path}: is not a manifest of prepared data; prepare the folder again")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror}); prepare the folder") from None
