"""What an entry is called: content keys and names."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from harness.errors import StoreError
from harness.store.codec import dumps, to_json

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_NAME = 200
_SECRET = re.compile(
    r"token|(.*_)?(api_?key|access_key|private_key|secret(_.*)?|password|passwd|credentials?"
    # not every *_token is a secret: eos_token and stop_token are ordinary settings
    r"|authorization|(api|auth|access|bearer|refresh|session|id|hf|hub)_token)"
)


def content_key(parts: Mapping[str, Any]) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of `parts`.

    Canonical: keys sorted, no blanks, ASCII, floats as Python's `repr` writes them. The standard
    library writes it, since its text is the same in every version, and a key has to last.
    Raises StoreError on NaN or infinity, on a value that is no JSON, and on a key named like a
    secret, since parts are written to disk in clear text.
    """
    text = json.dumps(plain_parts(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def merge_parts(*parts: Mapping[str, object]) -> dict[str, object]:
    """Return all `parts` in one mapping; none replaces another's.

    Raises StoreError if two hold the same name: of one of them the key would know nothing.
    """
    names = [name for each in parts for name in each]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise StoreError(
            f"key parts hold {', '.join(twice)} more than once: give each its own name"
        )
    return {name: value for each in parts for name, value in each.items()}


def plain_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `parts` as they are hashed and written: plain JSON, no secrets."""
    plain: dict[str, Any] = to_json(dict(parts), "key parts")
    refuse_secrets(plain, "key parts")
    dumps(plain, "key parts")  # raises on what could not be written beside the entry
    return plain


def check_name(name: str) -> str:
    """Return `name` if it is safe as a relative path, else raise StoreError in one line."""
    segments = name.split("/")
    if len(name) <= _MAX_NAME and all(_SEGMENT.fullmatch(segment) for segment in segments):
        return name
    raise StoreError(
        f"store name {name[: _MAX_NAME + 1]!r} is not safe as a path: use at most {_MAX_NAME} "
        "letters, digits, '.', '_' or '-', each segment beginning with a letter or digit"
    )


def refuse_secrets(value: object, where: str) -> None:
    """Raise StoreError if any key in `value` is named like a secret; the value is not shown."""
    for path in flatten(value):
        for name in re.split(r"[.\[\]]", path):
            if _SECRET.fullmatch(_snake_case(name)):
                raise StoreError(
                    f"{where} hold {path!r}, which is named like a secret and would be written "
                    "in clear text: leave it out"
                )


def flatten(value: object, path: str = "") -> dict[str, object]:
    """Return the leaves of nested JSON by dotted path, as `arms[0].seed`; {} and [] are leaves."""
    if isinstance(value, Mapping) and value:
        children = [(f"{path}.{name}" if path else str(name), v) for name, v in value.items()]
    elif isinstance(value, list) and value:
        children = [(f"{path}[{i}]", v) for i, v in enumerate(value)]
    else:
        return {path: value}
    return {leaf: v for child, inner in children for leaf, v in flatten(inner, child).items()}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
