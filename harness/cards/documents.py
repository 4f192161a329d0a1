"""What an author wrote, as plain JSON: three files, or one dict in the test file itself."""

import ast
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import JsonValue

from harness.errors import CardError

PARTS = ("card", "registration", "embedded")

Object = dict[str, JsonValue]


@dataclass(frozen=True)
class Document:
    """One part as it was written: what an error line calls it, its content, and a hash of it.

    The hash is of a file's bytes; a dict's is of its JSON.
    """

    name: str
    content: JsonValue
    sha256: str


def read_document(path: Path) -> Document:
    """A JSON file.

    Raises:
        CardError: it can't be read, or is no JSON with each key once.
    """
    data = read_bytes(path)
    return Document(path.name, parse(data, path.name), sha256(data))


def written_in(test_file: Path) -> dict[str, Document]:
    """The parts that a test file states itself, as `CARD = {"card": ..., "registration": ...}`.

    The dict holds values alone, so it is read without running the file; `embedded` may be left out.

    Raises:
        CardError: there is no such dict, or it holds more than values.
    """
    name = test_file.name
    try:
        tree = ast.parse(read_bytes(test_file), name)
    except (SyntaxError, ValueError) as error:
        raise CardError(f"{name}: no Python ({error}); correct it") from None
    stated = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == ["CARD"]
    ]
    try:
        (node,) = stated
        value = orjson.loads(orjson.dumps(ast.literal_eval(node)))
    except (ValueError, TypeError) as error:
        raise CardError(
            f"{name}: CARD is no dict of plain values ({error}); write texts, numbers, lists and "
            "dicts, without names or calls"
        ) from None
    odd = sorted(set(value) - set(PARTS)) if isinstance(value, dict) else ["something else"]
    if odd or not {"card", "registration"} <= set(value):
        has = f", and {', '.join(odd)} is none of them" if odd else ""
        raise CardError(f"{name}: CARD has a card and a registration, and may have embedded{has}")
    return {
        part: Document(f"{name}: {part}", value[part], sha256(orjson.dumps(value[part])))
        for part in value
    }


def read_bytes(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        CardError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CardError(
            f"{path.name}: can't be read ({error.strerror}); looked at {path}, write that file or "
            "correct its name"
        ) from None


def parse(data: bytes, name: str) -> JsonValue:
    """UTF-8 JSON in which no object has a key twice.

    Raises:
        CardError: it is something else.
    """

    def refuse_twice(pairs: list[tuple[str, object]]) -> None:
        counts = Counter(key for key, _ in pairs)
        if twice := [key for key, count in counts.items() if count > 1]:
            raise CardError(
                f"{name}: key {twice[0]!r} stands {counts[twice[0]]} times in one object; "
                "keep one of them"
            )

    try:
        text = data.decode("utf-8")
        document: JsonValue = orjson.loads(text)
        json.loads(text, object_pairs_hook=refuse_twice)  # orjson takes the last one
    except UnicodeDecodeError as error:
        raise CardError(
            f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    except orjson.JSONDecodeError as error:
        lines = error.doc.splitlines()[error.lineno - 1 : error.lineno]
        raise CardError(
            f"{name}: not valid JSON: {error}"
            + "".join(f", which is {shown(line.strip())}" for line in lines)
            + "; correct it there"
        ) from None
    except RecursionError:
        raise CardError(f"{name}: nested too deeply; flatten it") from None
    return document


def shown(value: object) -> str:
    """A value as an error line shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def sha256(data: bytes) -> str:
    """Of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
