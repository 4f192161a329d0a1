"""Records as bytes: JSON with exact float64 and numpy arrays, zstandard with a checksum.

`zstdcat FILE | python -m json.tool` reads any record without the harness.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import zstandard

from harness.errors import StoreError

_ARRAY = "__array__"
_LEVEL = 3


class CorruptRecord(ValueError):
    """The bytes are not what was written: torn, altered, or of another kind."""


def encode(value: object, what: str) -> bytes:
    """Return `value` as one zstandard frame of JSON; `what` names it in errors.

    Numpy arrays (numbers or booleans) keep dtype, shape and bits; numpy scalars become Python ones.
    Raises StoreError on NaN, infinity, and on anything that JSON can't carry.
    """
    frame = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    return frame.compress(dumps(to_json(value, what), what))


def dumps(plain: object, what: str, option: int = 0) -> bytes:
    """Return what `to_json` gave as bytes; raise StoreError if it is not JSON after all."""
    try:
        return orjson.dumps(plain, option=option)
    except orjson.JSONEncodeError as error:  # an integer beyond 64 bits, a lone surrogate
        raise StoreError(f"{what} can't be stored: {error}") from None


def decode(data: bytes) -> Any:  # the reader knows its own records; JSON says no more than this
    """Return what `encode` was given; raise CorruptRecord if a single bit differs."""
    try:
        return _restore(orjson.loads(decompress(data)))
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError) as error:
        raise CorruptRecord(str(error)) from None


def decompress(data: bytes) -> bytes:
    """Return the JSON of one frame; raise CorruptRecord if the frame is torn or altered."""
    reader = zstandard.ZstdDecompressor().decompressobj()
    try:
        text = reader.decompress(data)
    except zstandard.ZstdError as error:
        raise CorruptRecord(str(error)) from None
    if not reader.eof or reader.unused_data:
        raise CorruptRecord("the file is cut short" if not reader.eof else "bytes after the end")
    return text


def to_json(value: object, path: str) -> Any:  # a tree of plain JSON values
    """Return `value` as plain JSON, with arrays tagged; `path` names it in errors.

    Raises StoreError for a number that is not finite, or a type that JSON does not have.
    """
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            raise StoreError(
                f"{path} is {float(value)}: only finite numbers are stored, find where it was born"
            )
        return float(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {_key(name, path): to_json(item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        types = set(map(type, value))  # rows of tokens and log-probs, without a call per number
        if types <= {int, str} or (types == {float} and math.isfinite(sum(map(abs, value)))):
            return list(value)
        return [to_json(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray):
        return _array_to_json(value, path)
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    raise StoreError(f"{path} is a {type(value).__name__}, which can't be stored: convert it first")


def _key(name: object, path: str) -> str:
    if not isinstance(name, str) or name == _ARRAY:
        raise StoreError(f"{path} has the key {name!r}: keys are strings other than {_ARRAY!r}")
    return name


def _array_to_json(array: np.ndarray[Any, Any], path: str) -> dict[str, object]:
    if array.dtype.kind not in "biuf":
        raise StoreError(f"{path} is an array of {array.dtype}: only numbers and booleans are kept")
    if not np.isfinite(array).all():
        bad = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise StoreError(f"{path}{list(bad)} is {array[bad]}: only finite numbers are stored")
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {_ARRAY: data, "dtype": array.dtype.str, "shape": list(array.shape)}


def _restore(value: Any) -> Any:  # a tree of plain JSON values, walked as it comes
    if isinstance(value, dict):
        if _ARRAY in value:
            data = np.frombuffer(base64.b64decode(value[_ARRAY]), dtype=value["dtype"])
            return data.reshape(value["shape"]).copy()  # frombuffer is read-only
        return {name: _restore(item) for name, item in value.items()}
    # rows of numbers go back as they are, without a call per number
    if isinstance(value, list) and not {dict, list}.isdisjoint(map(type, value)):
        return [_restore(item) for item in value]
    return value
