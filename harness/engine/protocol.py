"""Between the wire and the engine's own types: protobuf and JSON bodies, checked field by field.

The protobuf module is the SDK's own, loaded by itself: importing the `tinker` package would cost
over a second and bring a client along.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

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
)
from harness.engine.lora import LoraConfig
from harness.engine.losses import LOSSES
from harness.engine.sequences import PromptWanted
from harness.engine.trainer import AdamParams, Datum

MAX_SAMPLES = 1024
MAX_TOP_K_PROMPT = 100
MAX_STOPS = 64


def _load_protobuf() -> ModuleType:
    name = "tinker.proto.tinker_public_pb2"
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("tinker")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the tinker SDK is not installed; its protobuf module is needed")
    path = Path(package.submodule_search_locations[0]) / "proto" / "tinker_public_pb2.py"
    spec = importlib.util.spec_from_file_location("_engine_tinker_public_pb2", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: the tinker SDK has no protobuf module there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pb = _load_protobuf()
_DTYPES: Mapping[int, type[np.generic]] = {
    pb.DTYPE_FLOAT32: np.float32,
    pb.DTYPE_INT64: np.int64,
    pb.DTYPE_INT32: np.int32,
}


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
    return _checked_tokens(np.array(_fits(tokens), dtype=np.int64), vocab, "prompt")


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


def parse_forward_backward(body: bytes) -> Any:  # a generated protobuf class, untyped here
    """The protobuf body of forward_backward. Raises RequestError if it can't be read."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except Exception as error:
        raise RequestError(f"the body is not a ForwardBackwardRequest ({error})") from None
    return message


def data_of(message: Any, vocab: int, max_positions: int) -> list[Datum]:  # as above
    """The datums of a forward_backward request, checked against the loss and the model."""
    if message.loss_fn not in LOSSES:
        raise RequestError(
            f"loss_fn {shown(message.loss_fn)} is unknown; served: {', '.join(LOSSES)}"
        )
    if not message.data:
        raise RequestError("forward_backward carries no datum; send at least one")
    found = []
    for index, raw in enumerate(message.data):
        try:
            found.append(_datum(raw, message.loss_fn, vocab, max_positions))
        except RequestError as error:
            raise RequestError(f"datum {index}: {error}") from None
    return found


def _datum(raw: Any, loss_fn: str, vocab: int, max_positions: int) -> Datum:  # as above
    chunks = []
    for chunk in raw.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise RequestError("only encoded_text chunks are served")
        buffer = chunk.encoded_text.tokens
        if len(buffer) % 4:
            raise RequestError(f"a text chunk has {len(buffer)} bytes; tokens are int32")
        chunks.append(np.frombuffer(buffer, dtype="<i4"))
    tokens = np.concatenate(chunks).astype(np.int64) if chunks else np.empty(0, np.int64)
    if not 1 <= len(tokens) <= max_positions:
        raise RequestError(f"model_input has {len(tokens)} tokens; allowed are 1..{max_positions}")
    _checked_tokens(tokens, vocab, "model_input")
    tensors = {name: _tensor(name, tensor) for name, tensor in raw.loss_fn_inputs.items()}
    if "target_tokens" not in tensors:
        raise RequestError("loss_fn_inputs lacks target_tokens")
    targets = tensors.pop("target_tokens")
    if targets.ndim not in (1, 2) or len(targets) != len(tokens) or targets.size == 0:
        raise RequestError(
            f"target_tokens has shape {targets.shape}; model_input has {len(tokens)} tokens"
        )
    if targets.ndim == 2 and loss_fn != "cross_entropy":
        raise RequestError(f"target_tokens is 2-D; only cross_entropy takes that, not {loss_fn}")
    if targets.dtype == np.float32 and not np.array_equal(targets, np.floor(targets)):
        raise RequestError("target_tokens holds numbers that are not whole")
    targets_T_K = _checked_tokens(
        targets.astype(np.int64).reshape(len(tokens), -1), vocab, "target_tokens"
    )
    wanted = LOSSES[loss_fn].inputs
    unknown = sorted(set(tensors) - set(wanted))
    if unknown:
        raise RequestError(
            f"loss_fn_inputs {unknown[0]!r} is unknown to {loss_fn}; it takes {wanted}"
        )
    inputs = {}
    for name in wanted:
        if name not in tensors and name == "weights":
            tensors[name] = np.ones(targets.shape, dtype=np.float32)
        if name not in tensors:
            raise RequestError(f"loss_fn_inputs lacks {name}, which {loss_fn} needs")
        values = tensors[name].astype(np.float32)
        if values.shape != targets.shape:
            raise RequestError(
                f"{name} has shape {values.shape}; target_tokens has {targets.shape}"
            )
        if not np.isfinite(values).all():
            raise RequestError(f"{name} holds NaN or infinity at {_first_bad(values)}")
        inputs[name] = values.reshape(targets_T_K.shape)
    return Datum(tokens, targets_T_K, inputs, targets.ndim == 1)


def _tensor(name: str, tensor: Any) -> npt.NDArray[np.generic]:  # as above
    """A dense or sparse tensor as an array of its shape."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise RequestError(f"{name} has dtype {tensor.dtype}; float32 and int64 are served")
    shape = tuple(tensor.shape)
    if any(side < 0 or side > 1 << 31 for side in shape):
        raise RequestError(f"{name} has shape {shape}")
    if tensor.WhichOneof("encoding") == "sparse_csr":
        return _dense(name, tensor.sparse_csr, dtype, shape)
    values = _values(name, tensor.dense, np.dtype(dtype))
    if not shape:
        return values
    if values.size != math.prod(shape):
        raise RequestError(f"{name} holds {values.size} numbers; its shape is {shape}")
    return values.reshape(shape)


def _dense(
    name: str, csr: Any, dtype: type[np.generic], shape: tuple[int, ...]
) -> npt.NDArray[np.generic]:
    """A compressed sparse row tensor, zeros where nothing is stored."""
    if len(shape) != 2 or math.prod(shape) > 1 << 26:
        raise RequestError(f"{name} is sparse with shape {shape}; it must be 2-D and below 2^26")
    values = _values(name, csr.values, np.dtype(dtype))
    starts = _values(name, csr.crow_indices, np.dtype(np.int64)).astype(np.int64)
    columns = _values(name, csr.col_indices, np.dtype(np.int64)).astype(np.int64)
    counts = np.diff(starts)
    sound = (
        len(starts) == shape[0] + 1
        and starts[0] == 0
        and starts[-1] == len(values) == len(columns)
        and bool((counts >= 0).all())
        and bool(((columns >= 0) & (columns < shape[1])).all())
    )
    if not sound:
        raise RequestError(f"{name} is sparse and its indices do not fit shape {shape}")
    out = np.zeros(shape, dtype=dtype)
    out[np.repeat(np.arange(shape[0]), counts), columns] = values
    return out


def _values(name: str, buffer: bytes, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    if len(buffer) % dtype.itemsize:
        raise RequestError(f"{name} has {len(buffer)} bytes, not a multiple of {dtype.itemsize}")
    return np.frombuffer(buffer, dtype=dtype)


def _checked_tokens(tokens: npt.NDArray[np.int64], vocab: int, name: str) -> npt.NDArray[np.int64]:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab:
        raise RequestError(
            f"{name} holds token {low if low < 0 else high}; tokens lie in 0..{vocab - 1}"
        )
    return tokens


def _fits(tokens: Sequence[int]) -> Sequence[int]:
    low, high = min(tokens), max(tokens)
    if low < -(1 << 62) or high > 1 << 62:
        raise RequestError(f"the prompt holds token {low if low < 0 else high}")
    return tokens


def _first_bad(values: npt.NDArray[np.float32]) -> list[int]:
    return [int(i) for i in np.argwhere(~np.isfinite(values))[0]]


def prompt_wanted(body: Json) -> PromptWanted:
    """What a sample request asks about its prompt."""
    return PromptWanted(
        flag(body, "prompt_logprobs", False),
        integer(body, "topk_prompt_logprobs", 0, MAX_TOP_K_PROMPT, 0),
    )
