"""From a raw folder of the published schema to a prepared one: splits, corpus, index, manifest.

A prepared folder holds `train.jsonl`, `test.jsonl`, `lexical.sqlite3` and `dataset.json`. The
synthetic corpus is a raw folder like any other, but for the marker file that says so, and the
marker's content goes into the manifest.
"""

import hashlib
import heapq
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from harness.errors import DataError
from harness.tasks.sec_search.index import build_index
from harness.tasks.sec_search.records import (
    Query,
    query_record,
    raw_sha256,
    read_chunk_ids,
    read_chunks,
    read_queries,
    split_chunk_id,
)
from harness.tasks.sec_search.splits import Splits, choose_splits, leakage

INDEX, MANIFEST, SYNTHETIC_MARKER = "lexical.sqlite3", "dataset.json", "synthetic.json"
SPLIT_FILES = {"train": "train.jsonl", "test": "test.jsonl"}


@dataclass(frozen=True)
class Selection:
    """What is taken from a raw folder.

    `seed` orders questions and background chunks. The corpus is every gold chunk of the chosen
    questions, its neighbours in the same filing within `radius`, and `background` others; all
    chunks if `background` is None.
    """

    n_train: int
    n_test: int
    seed: int = 42
    radius: int = 4
    background: int | None = 60_000


def prepare(raw: Path, prepared: Path, selection: Selection) -> Path:
    """Prepare `raw` into the folder `prepared`, which appears whole or not at all.

    A folder that was prepared from the same bytes with the same selection is left as it is.

    Returns:
        `prepared`.

    Raises:
        DataError: the raw folder is malformed or too small, or `prepared` holds something else.
    """
    key: dict[str, object] = {"raw_sha256": raw_sha256(raw), "selection": asdict(selection)}
    if prepared.exists():
        _refuse_other(prepared, key)
        return prepared
    prepared.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{prepared.name}.", dir=prepared.parent))
    try:
        facts = _fill(raw, temporary, selection)
        manifest = {**key, "source": _source(raw), **facts}
        _write(temporary / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())
        temporary.rename(prepared)
    except OSError as error:
        # another process may have finished the same folder first
        if prepared.exists():
            _refuse_other(prepared, key)
            return prepared
        raise DataError(f"{prepared}: can't be written ({error.strerror}); free space") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return prepared


def _fill(raw: Path, folder: Path, selection: Selection) -> dict[str, object]:
    """Write splits and index; the manifest's counts and hashes."""
    queries, left_out = read_queries(raw)
    cited = frozenset(chunk for query in queries for chunk in query.gold)
    present = {chunk for chunk in read_chunk_ids(raw) if chunk in cited}
    usable = [query for query in queries if query.gold <= present]
    splits = choose_splits(usable, selection.n_train, selection.n_test, selection.seed)
    members = corpus_members(read_chunk_ids(raw), splits, selection)
    rowids = {chunk_id: row for row, chunk_id in enumerate(members, start=1)}
    sha256s = {"corpus": build_index(folder / INDEX, read_chunks(raw), rowids)}
    _sync(folder / INDEX)
    for split, name in SPLIT_FILES.items():
        content = _json_lines(splits.train if split == "train" else splits.test)
        _write(folder / name, content)
        sha256s[split] = hashlib.sha256(content).hexdigest()
    counts = {
        "queries": len(queries),
        "left_out": {**left_out, "gold chunk not in the corpus": len(queries) - len(usable)},
        "train": len(splits.train),
        "test": len(splits.test),
        "chunks": len(rowids),
    }
    return {"counts": counts, "sha256s": sha256s, "leakage": leakage(splits)}


def corpus_members(ids: Iterable[str], splits: Splits, selection: Selection) -> list[str]:
    """The ids of the corpus, sorted: gold, neighbours, background; see `Selection`.

    Background chunks are those of the least keyed hashes, so that a corpus of more shards changes
    few of them.
    """
    gold = {chunk for query in (*splits.train, *splits.test) for chunk in query.gold}
    near = {
        (accession, place + offset)
        for accession, place in map(split_chunk_id, gold)
        if place is not None
        for offset in range(-selection.radius, selection.radius + 1)
    }
    kept: list[str] = []

    def others() -> Iterator[tuple[bytes, str]]:
        for chunk_id in ids:
            if selection.background is None or chunk_id in gold or split_chunk_id(chunk_id) in near:
                kept.append(chunk_id)
            else:
                key = f"{selection.seed}/{chunk_id}".encode()
                yield hashlib.blake2b(key, digest_size=8).digest(), chunk_id

    room = selection.background or 0
    # at least one, since nsmallest(0, ...) would not read the ids at all
    background = heapq.nsmallest(max(room, 1), others())[:room]
    return sorted({*kept, *(chunk_id for _, chunk_id in background)})


def _source(raw: Path) -> dict[str, object]:
    """Where the data come from: the marker of a synthetic folder, else the published path."""
    marker = raw / SYNTHETIC_MARKER
    if marker.is_file():
        return {"kind": "synthetic", **orjson.loads(marker.read_bytes())}
    return {"kind": "published", "path": str(raw)}


def _refuse_other(prepared: Path, key: Mapping[str, object]) -> None:
    try:
        manifest = orjson.loads((prepared / MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise DataError(
            f"{prepared}: exists and has no readable {MANIFEST} ({error}); name another folder"
        ) from None
    if any(manifest.get(name) != value for name, value in key.items()):
        raise DataError(
            f"{prepared}: was prepared from other data or with another selection; remove it or "
            "name another folder"
        )


def _json_lines(queries: Sequence[Query]) -> bytes:
    return b"".join(orjson.dumps(query_record(query)) + b"\n" for query in queries)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    _sync(path)


def _sync(path: Path) -> None:
    """Flush a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
