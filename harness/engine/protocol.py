"""What JSON requests of the Tinker protocol ask for, in the engine's own types.

Every function raises RequestError, in one line, for a field that can't be served.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.engine.errors import RequestError
from harness.engine.fields import (
    Json,
    flag,
    integer,
    mapping,
    number,
    optional_integer,
    shown,
    within_vocabulary,
)
from harness.engine.lora import LoraConfig
from harness.engine.sequences import PromptWanted
from harness.engine.trainer import AdamParams

MAX_SAMPLES = 1024
MAX_TOP_K_PROMPT = 100
MAX_STOPS = 64


def lora_config(body: Json, unseeded: int) -> LoraConfig:
    """The `lora_config` of a create_model request; `unseeded` stands in for a missing seed."""
    raw = mapping(body, "lora_config")
    config = LoraConfig(
        rank=integer(raw, "rank", 1, 1 << 20, 32),
        seed=integer(raw, "seed", -(1 << 63), (1 << 63) - 1, unseeded),
        train_unembed=flag(raw, "train_unembed", True),
        train_mlp=flag(raw, "train_mlp", True),
        train_attn=flag(raw, "train_attn", True),
    )
    problems = config.problems()
    if problems:
        raise RequestError("; ".join(problems))
    return config


def adam_params(body: Json) -> AdamParams:
    """The `adam_params` of an optim_step request."""
    raw, big = mapping(body, "adam_params"), sys.float_info.max
    return AdamParams(
        learning_rate=number(raw, "learning_rate", 0, big, 1e-4),
        beta1=number(raw, "beta1", 0, math.nextafter(1, 0), 0.9),
        beta2=number(raw, "beta2", 0, math.nextafter(1, 0), 0.95),
        eps=number(raw, "eps", 0, big, 1e-12),
        weight_decay=number(raw, "weight_decay", 0, big, 0.0),
        grad_clip_norm=number(raw, "grad_clip_norm", 0, big, 0.0),
    )


def prompt_tokens(body: Json, vocab: int) -> npt.NDArray[np.int64]:
    """The prompt of a sample request: its text chunks in one row."""
    chunks = mapping(body, "prompt").get("chunks")
    if not isinstance(chunks, list):
        raise RequestError(f"prompt.chunks = {shown(chunks)}; it must be a list")
    tokens: list[int] = []
    for chunk in chunks:
        kind = chunk.get("type", "encoded_text") if isinstance(chunk, dict) else None
        if kind != "encoded_text" or not isinstance(chunk.get("tokens"), list):
            raise RequestError(f"prompt chunk of type {shown(kind)}; only encoded_text is served")
        tokens.extend(chunk["tokens"])
    if not tokens:
        raise RequestError("the prompt is empty; it needs at least one token")
    if not all(type(token) is int for token in tokens):
        raise RequestError("the prompt holds something that is not a whole number")
    return within_vocabulary(np.array(_fits(tokens), dtype=np.int64), vocab, "prompt")


def prompt_wanted(body: Json) -> PromptWanted:
    """What a sample request asks about its prompt."""
    return PromptWanted(
        flag(body, "prompt_logprobs", False),
        integer(body, "topk_prompt_logprobs", 0, MAX_TOP_K_PROMPT, 0),
    )


@dataclass(frozen=True)
class SamplingWanted:
    """Sampling parameters as a client sends them; None where the engine has to choose."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]


def sampling_wanted(body: Json) -> SamplingWanted:
    """The `sampling_params` of a sample request; seeds may be any whole number of 64 bits."""
    raw = mapping(body, "sampling_params")
    top_k = integer(raw, "top_k", -1, 1 << 31, -1)
    ids, strings = _stops(raw.get("stop"))
    return SamplingWanted(
        max_tokens=optional_integer(raw, "max_tokens", 1, 1 << 31),
        temperature=number(raw, "temperature", 0, 1e6, 1.0),
        top_k=top_k,
        top_p=number(raw, "top_p", math.nextafter(0, 1), 1, 1.0),
        seed=optional_integer(raw, "seed", -(1 << 63), (1 << 64) - 1),
        stop_ids=frozenset(ids),
        stop_strings=tuple(strings),
    )


def _stops(raw: object) -> tuple[list[int], list[str]]:
    """Stop token ids and stop strings, from null, a text, or a list of either."""
    stops = [] if raw is None else raw if isinstance(raw, list) else [raw]
    ids = [stop for stop in stops if type(stop) is int]
    strings = [stop for stop in stops if isinstance(stop, str)]
    if len(ids) + len(strings) != len(stops) or len(stops) > MAX_STOPS:
        raise RequestError(
            f"stop = {shown(raw)}; it must be a text, or at most {MAX_STOPS} texts or token ids"
        )
    if "" in strings:
        raise RequestError("stop holds an empty text")
    return ids, strings


def _fits(tokens: Sequence[int]) -> Sequence[int]:
    low, high = min(tokens), max(tokens)
    if low < -(1 << 62) or high > 1 << 62:
        raise RequestError(f"the prompt holds token {low if low < 0 else high}")
    return tokens
