"""The request trace: what was asked of a service in a step or an evaluation, as it is stored."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import orjson

from harness.evidence import Evidence
from harness.records import Row
from harness.tasks.task import Item

Settings = dict[str, float | str | None]
"""One request's settings by the SDK's names; whole numbers and flags as floats."""

CUSTOM = "custom"
"""The loss of a gradient that this client computes; what the datums carry is then not sent."""


class Carried(NamedTuple):
    """What a datum carries where its rollout acted (T): each row as sent, empty if it was not."""

    tokens_T: Sequence[int]
    logprobs_T: Sequence[float]
    advantages_T: Sequence[float]


class StepTrace(Evidence):
    """The requests of one step: samples in the order of their seeds, the rest as it was made.

    `created` are the training clients that were created new, `loaded` the states that took the
    place of a client's weights. `samples` are sampling requests, each with the `version` of its
    sampler: the updates behind its weights; `probed` are those of a gradient probe. `losses` are
    gradients asked for, `optimizer` the updates, `datums_sha256` is the `digest` of all datums,
    `questions_sha256` that of what was asked.
    `faults` says where datums, prompts or rewards are not those of the responses that came back.
    `replies` counts the turns of its rollouts, `updates` is 0 where all of its groups were dropped
    and nothing was to update, else 1.
    """

    created: list[Settings]
    loaded: list[Settings]
    samples: list[Settings]
    probed: list[Settings]
    losses: list[Settings]
    optimizer: list[Settings]
    datums_sha256: str
    questions_sha256: str
    faults: list[str]
    replies: int
    updates: int


class EvaluationTrace(Evidence):
    """The requests of an evaluation; the rest as in `StepTrace` and `ArmTrace`.

    `samplers` are those that were created: on the saved weights of a path, or on a base model.
    `rows_sha256` is that of the rows that came of it.
    """

    multi_turn: bool
    rows_sha256: str
    samplers: list[Settings]
    samples: list[Settings]
    faults: list[str]
    replies: int


def as_settings(values: Mapping[str, object]) -> Settings:
    """Settings as the SDK takes them, in plain values."""
    return {
        key: None
        if value is None
        else float(value)
        if isinstance(value, (int, float))
        else str(value)
        for key, value in values.items()
    }


def digest(rows: Iterable[Carried]) -> str:
    """sha256 over what datums carry, in hex; log-probs and advantages as float32, as sent."""
    total = hashlib.sha256()
    for row in rows:
        total.update(np.asarray([len(row.tokens_T), *row.tokens_T], np.int64).tobytes())
        total.update(np.asarray(row.logprobs_T, np.float32).tobytes())
        total.update(np.asarray(row.advantages_T, np.float32).tobytes())
    return total.hexdigest()


def asked_digest(items: Iterable[Item]) -> str:
    """sha256 over the ids and questions of items, in hex."""
    return hashlib.sha256(repr([(i.id, i.question) for i in items]).encode()).hexdigest()


def rows_digest(rows: Sequence[Row]) -> str:
    """sha256 over evaluated rows, in hex, whatever their order."""
    lines = sorted(orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in rows)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()
