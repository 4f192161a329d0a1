"""Fields of a request, each checked for its type and range as it is read.

Every function raises RequestError, in one line that names the field, its value and the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.engine.errors import RequestError

Json = Mapping[str, Any]  # what a JSON object holds is known only once each field was checked


def text(body: Json, name: str) -> str:
    """A field that must be a non-empty text."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} = {shown(value)}; it must be a non-empty text")
    return value


def optional_text(body: Json, name: str) -> str | None:
    """A field that may be missing or null."""
    return None if body.get(name) is None else text(body, name)


def integer(body: Json, name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number in `low..high`; with a default, missing or null takes it."""
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} = {shown(value)}; it must be a whole number in {low}..{high}")
    return value


def optional_integer(body: Json, name: str, low: int, high: int) -> int | None:
    """A whole number, missing or null."""
    return None if body.get(name) is None else integer(body, name, low, high)


def number(body: Json, name: str, low: float, high: float, default: float) -> float:
    """A finite number in `low..high`; missing or null takes the default."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} = {shown(value)}; it must be a number in {low:g}..{high:g}")
    return float(value)


def flag(body: Json, name: str, default: bool) -> bool:
    """true or false; missing or null takes the default."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} = {shown(value)}; it must be true or false")
    return value


def mapping(body: Json, name: str) -> Json:
    """A JSON object; missing or null is an empty one."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{name} = {shown(value)}; it must be an object")
    return value


def within_vocabulary(
    tokens: npt.NDArray[np.int64], vocab: int, name: str
) -> npt.NDArray[np.int64]:
    """The tokens, at least one of them, if each is one of the vocabulary."""
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab:
        raise RequestError(
            f"{name} holds token {low if low < 0 else high}; tokens lie in 0..{vocab - 1}"
        )
    return tokens


def shown(value: object) -> str:
    """A value for a message, cut short."""
    whole = repr(value)
    return whole if len(whole) <= 60 else whole[:57] + "..."
