"""What a registration may set of a component, and the line about a setting that it may not."""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

AnySettings = TypeVar("AnySettings", bound="Settings")


class Settings(BaseModel):
    """Base of a component's settings: no unknown keys, no NaN, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NoSettings(Settings):
    """Of a component that has none."""


def settings_problems(model: type[Settings], given: Mapping[str, JsonValue]) -> list[str]:
    """Everything that a component's settings can't be, one line each."""
    try:
        parsed(model, given)
    except ValidationError as error:
        return [_line(model, found["loc"], found["type"], found["msg"]) for found in error.errors()]
    return []


def parsed(model: type[AnySettings], given: Mapping[str, JsonValue]) -> AnySettings:
    """Settings as a file states them; in JSON an array may fill a tuple.

    Raises:
        ValidationError: they are not what the model takes.
    """
    return model.model_validate_json(json.dumps(dict(given)))


def nearest(name: str, known: Iterable[str]) -> str:
    """What a misspelt name may have meant: `, did you mean 'rloo'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _line(model: type[Settings], place: tuple[int | str, ...], kind: str, message: str) -> str:
    name = ".".join(str(part) for part in place)
    known = ", ".join(sorted(model.model_fields)) or "none"
    if kind == "missing":
        return f"{name} is missing; it takes {known}"
    if kind == "extra_forbidden":
        return f"{name} is unknown{nearest(name, model.model_fields)}; it takes {known}"
    return f"{name}: {message[:1].lower()}{message[1:]}"
