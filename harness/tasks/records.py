"""Reading data files: JSON lines with a question and an answer, hashed and counted."""

import hashlib
from pathlib import Path

import orjson

from harness.errors import DataError

KEYS = frozenset({"question", "answer"})
SHOWN_PROBLEMS = 5


def data_sha256(path: Path) -> str:
    """sha256 of the file's bytes, in hex.

    Raises:
        DataError: the file can't be read.
    """
    return hashlib.sha256(_bytes(path)).hexdigest()


def read_records(path: Path, expected: int) -> list[dict[str, str]]:
    """All records of a JSON-lines file of at least `expected` records.

    Raises:
        DataError: the file is missing, empty or truncated, or a line is not a record of exactly
            a question and an answer. Up to five such lines are named.
    """
    lines = _bytes(path).splitlines()
    if not lines:
        raise DataError(f"{path.name}: 0 records, expected {expected}; the file at {path} is empty")
    records = []
    problems = []
    for number, line in enumerate(lines, start=1):
        outcome = _record(line)
        if isinstance(outcome, str):
            problems.append(f"{path.name}: line {number} of {len(lines)} {outcome}")
        else:
            records.append(outcome)
    refuse(problems)
    if len(records) < expected:
        raise DataError(
            f"{path.name}: {len(records)} records, the card says {expected}; the file is "
            f"truncated, fetch it again ({path})"
        )
    return records


def refuse(problems: list[str]) -> None:
    """Stop if there are problems.

    Raises:
        DataError: the first five problems, one a line, and how many more there are.
    """
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        shown = [*problems[:SHOWN_PROBLEMS], *([f"... and {more} more"] if more > 0 else [])]
        raise DataError("\n".join(shown))


def _record(line: bytes) -> dict[str, str] | str:
    """The record, or what is wrong with it."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"is not JSON ({error}); the file is truncated or damaged, fetch it again"
    if not isinstance(record, dict) or set(record) != KEYS:
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        return f"has {found}; a record has exactly {sorted(KEYS)}"
    for key in sorted(KEYS):
        value = record[key]
        if not isinstance(value, str) or not value.strip():
            return f"has {key} {value!r}; it must be a non-empty text"
    return record


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path.name}: can't be read ({error.strerror}); put the file at {path}, "
            "or point HARNESS_GSM8K_DIR at a folder that holds it"
        ) from None
