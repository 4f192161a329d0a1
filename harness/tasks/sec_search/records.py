"""The published record schema: multi-clue questions and filing chunks, in parquet folders.

A raw folder holds `data/*.parquet` with the questions and `corpora/sec/train/*.parquet` with the
chunks, as the data set pat-jj/harness-1-train-data publishes them. pyarrow is imported on use.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import DataError

if TYPE_CHECKING:
    # pyarrow ships no type marker
    import pyarrow as pa  # type: ignore[import-untyped]

QUERY_FILES = "data/*.parquet"
CHUNK_FILES = "corpora/sec/train/*.parquet"
QUERY_COLUMNS = ("stage", "dataset_name", "query_id", "query", "answer", "document_ids_json")
CHUNK_COLUMNS = ("chunk_id", "document_text")
BATCH_ROWS = 4_096

_HEADER_LINE = re.compile(r"(Company|Filing Date|Form|Item|Chunk)[: ]\s*(.*)")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Fact:
    """One thing to be found. Any of its `chunk_ids` shows it; they are interchangeable."""

    text: str
    chunk_ids: tuple[str, ...]
    is_final_answer: bool


@dataclass(frozen=True)
class Query:
    """A multi-clue question and the facts that answer it. `answer` is never scored."""

    id: str
    text: str
    answer: str
    facts: tuple[Fact, ...]

    @property
    def question(self) -> str:
        """The whole user message."""
        return self.text

    @property
    def family(self) -> str:
        """What its shorter and longer variants share: the id without its last part."""
        return self.id.rpartition("_")[0] or self.id

    @property
    def gold(self) -> frozenset[str]:
        """All chunks that show one of its facts."""
        return frozenset(chunk for fact in self.facts for chunk in fact.chunk_ids)

    @property
    def normalized_text(self) -> str:
        """The question with case and spacing taken out, for finding repeats."""
        return _SPACES.sub(" ", self.text).strip().casefold()


@dataclass(frozen=True)
class Chunk:
    """A piece of a filing; `id` is `<accession>_<index>`."""

    id: str
    title: str
    text: str


def read_queries(raw: Path) -> tuple[list[Query], dict[str, int]]:
    """The questions of the rl stage on SEC filings, in file order, and how many were left out.

    A record whose facts are missing or cite no chunk can't be scored: it is left out and counted
    under its reason.

    Raises:
        DataError: no file, an unreadable one, a missing column, or not one usable question.
    """
    queries, left_out = [], dict.fromkeys(("no facts", "a fact without chunks", "malformed"), 0)
    for row in _rows(raw, QUERY_FILES, QUERY_COLUMNS):
        if row["stage"] == "rl" and row["dataset_name"] == "sec":
            outcome = _query(row)
            if isinstance(outcome, str):
                left_out[outcome] += 1
            else:
                queries.append(outcome)
    if not queries:
        raise DataError(
            f"{raw}: 0 usable questions of stage rl on sec ({left_out} left out); point at a "
            "folder of the published schema"
        )
    return queries, {reason: n for reason, n in left_out.items() if n}


def read_chunk_ids(raw: Path) -> Iterator[str]:
    """The ids of all chunks, in file order, without reading their texts.

    Raises:
        DataError: no file, an unreadable one, or a missing column.
    """
    for row in _rows(raw, CHUNK_FILES, ("chunk_id",)):
        yield str(row["chunk_id"])


def read_chunks(raw: Path) -> Iterator[Chunk]:
    """All chunks in file order, a batch of rows in memory at a time.

    Raises:
        DataError: no file, an unreadable one, or a missing column.
    """
    for row in _rows(raw, CHUNK_FILES, CHUNK_COLUMNS):
        chunk_id = str(row["chunk_id"])
        title, text = split_heading(chunk_id, str(row["document_text"]))
        yield Chunk(chunk_id, title, text)


def raw_sha256(raw: Path) -> str:
    """sha256 over the names and bytes of a raw folder's parquet files, in hex."""
    digest = hashlib.sha256()
    for path in [*_files(raw, QUERY_FILES), *_files(raw, CHUNK_FILES)]:
        digest.update(f"{path.relative_to(raw).as_posix()}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def split_chunk_id(chunk_id: str) -> tuple[str, int | None]:
    """(accession, index); the index is None if the id does not end in a number."""
    accession, _, index = chunk_id.rpartition("_")
    return (accession, int(index)) if index.isdecimal() and accession else (chunk_id, None)


def split_heading(chunk_id: str, document_text: str) -> tuple[str, str]:
    """("Company · form · date", text below the `---` line) of a published document text.

    Without a heading the title is the accession and the text is the whole.
    """
    head, rule, body = document_text.partition("\n---\n")
    found: dict[str, str] = {}
    for line in head.splitlines():
        if match := _HEADER_LINE.match(line.strip()):
            found.setdefault(match[1], match[2])
    parts = [found[key].strip() for key in ("Company", "Form", "Filing Date") if key in found]
    if not rule or not parts:
        return split_chunk_id(chunk_id)[0], document_text.strip()
    return " · ".join(parts), body.strip()


def query_record(query: Query) -> dict[str, object]:
    """A question as one JSON line of a prepared folder."""
    facts = [
        {"fact": f.text, "chunk_ids": list(f.chunk_ids), "is_final_answer": f.is_final_answer}
        for f in query.facts
    ]
    return {"id": query.id, "text": query.text, "answer": query.answer, "facts": facts}


def query_of(record: dict[str, object]) -> Query:
    """The question of a prepared folder's JSON line.

    Raises:
        DataError: the record is malformed.
    """
    facts = _facts(record.get("facts"))
    if isinstance(facts, str):
        raise DataError(f"question {record.get('id')!r}: {facts}; prepare the folder again")
    return Query(str(record["id"]), str(record["text"]), str(record["answer"]), facts)


def _query(row: dict[str, object]) -> Query | str:
    try:
        listed = json.loads(str(row["document_ids_json"]))
    except (ValueError, RecursionError):
        return "malformed"
    facts = _facts(listed)
    text = row["query"]
    if isinstance(facts, str):
        return facts
    if not isinstance(text, str) or not text.strip():
        return "malformed"
    return Query(str(row["query_id"]), text.strip(), str(row["answer"] or ""), facts)


def _facts(listed: object) -> tuple[Fact, ...] | str:
    """The facts, or why they can't be used."""
    if not isinstance(listed, list) or not listed:
        return "no facts"
    facts = []
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("chunk_ids"), list):
            return "malformed"
        chunk_ids = tuple(dict.fromkeys(str(chunk) for chunk in entry["chunk_ids"]))
        if not chunk_ids:
            return "a fact without chunks"
        facts.append(
            Fact(str(entry.get("fact", "")), chunk_ids, bool(entry.get("is_final_answer")))
        )
    return tuple(facts)


def _files(raw: Path, pattern: str) -> list[Path]:
    files = sorted(raw.glob(pattern))
    if not files:
        raise DataError(
            f"{raw}: no file matches {pattern}; point at a folder of the published schema "
            f"({QUERY_FILES} and {CHUNK_FILES})"
        )
    return files


def _rows(raw: Path, pattern: str, columns: Sequence[str]) -> Iterator[dict[str, object]]:
    for path in _files(raw, pattern):
        for batch in _batches(path, columns):
            yield from batch.to_pylist()


def _batches(path: Path, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path) as file:
            missing = sorted(set(columns) - set(file.schema_arrow.names))
            if missing:
                raise DataError(
                    f"{path.name}: no column {', '.join(missing)}; the schema has "
                    f"{', '.join(columns)}"
                )
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: can't be read as parquet ({error}); the file is damaged, fetch it again"
        ) from None
