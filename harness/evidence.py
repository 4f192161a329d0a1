"""What a collector hands to a check: immutable, plain JSON, NaN included."""

import math
from typing import Annotated, Self

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, PlainSerializer


def _from_text(value: object) -> object:
    return float(value) if value in ("nan", "inf", "-inf") and isinstance(value, str) else value


def _to_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


# JSON has no NaN and no infinity, and a check must see the ones that were measured
Measured = Annotated[float, BeforeValidator(_from_text), PlainSerializer(_to_text)]


class Evidence(BaseModel):
    """Base of all evidence: what was observed, without judgement."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def plain(self) -> dict[str, JsonValue]:
        """The evidence as JSON values, for the run store."""
        document: dict[str, JsonValue] = orjson.loads(self.model_dump_json())
        return document

    @classmethod
    def of(cls, document: JsonValue) -> Self:
        """The evidence that `plain` wrote.

        Raises:
            pydantic.ValidationError: the document is not this kind of evidence.
        """
        return cls.model_validate_json(orjson.dumps(document))
