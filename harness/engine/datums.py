"""The datums of a forward_backward request, from protobuf, checked field by field.

Every function raises RequestError, in one line, for a field that can't be served.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.engine.errors import RequestError
from harness.engine.fields import shown, within_vocabulary
from harness.engine.losses import LOSSES
from harness.engine.protobuf import pb
from harness.engine.trainer import Datum

_DTYPES: Mapping[int, type[np.generic]] = {
    pb.DTYPE_FLOAT32: np.float32,
    pb.DTYPE_INT64: np.int64,
    pb.DTYPE_INT32: np.int32,
}


def parse_forward_backward(body: bytes) -> Any:  # a generated protobuf class, untyped here
    """The protobuf body of forward_backward."""
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
    tokens_T = _input_tokens(raw.model_input, max_positions)
    tokens_T = within_vocabulary(tokens_T, vocab, "model_input")
    tensors = {name: _tensor(name, tensor) for name, tensor in raw.loss_fn_inputs.items()}
    if "target_tokens" not in tensors:
        raise RequestError("loss_fn_inputs lacks target_tokens")
    targets = _targets(tensors.pop("target_tokens"), len(tokens_T), loss_fn)
    targets_T_K = within_vocabulary(targets.reshape(len(tokens_T), -1), vocab, "target_tokens")
    inputs = _loss_inputs(tensors, loss_fn, targets.shape)
    shaped = {name: values.reshape(targets_T_K.shape) for name, values in inputs.items()}
    return Datum(tokens_T, targets_T_K, shaped, flat=targets.ndim == 1)


def _input_tokens(chunks: Any, max_positions: int) -> npt.NDArray[np.int64]:  # as above
    """The tokens of a datum's text chunks in one row."""
    rows = []
    for chunk in chunks:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise RequestError("only encoded_text chunks are served")
        buffer = chunk.encoded_text.tokens
        if len(buffer) % 4:
            raise RequestError(f"a text chunk has {len(buffer)} bytes; tokens are int32")
        rows.append(np.frombuffer(buffer, dtype="<i4"))
    tokens = np.concatenate(rows).astype(np.int64) if rows else np.empty(0, np.int64)
    if not 1 <= len(tokens) <= max_positions:
        raise RequestError(f"model_input has {len(tokens)} tokens; allowed are 1..{max_positions}")
    return tokens


def _targets(targets: npt.NDArray[np.generic], length: int, loss_fn: str) -> npt.NDArray[np.int64]:
    """Whole numbers, one a position, or with cross_entropy several."""
    if targets.ndim not in (1, 2) or len(targets) != length or targets.size == 0:
        raise RequestError(
            f"target_tokens has shape {targets.shape}; model_input has {length} tokens"
        )
    if targets.ndim == 2 and loss_fn != "cross_entropy":
        raise RequestError(f"target_tokens is 2-D; only cross_entropy takes that, not {loss_fn}")
    if targets.dtype == np.float32 and not np.array_equal(targets, np.floor(targets)):
        raise RequestError("target_tokens holds numbers that are not whole")
    return targets.astype(np.int64)


def _loss_inputs(
    tensors: Mapping[str, npt.NDArray[np.generic]], loss_fn: str, shape: tuple[int, ...]
) -> dict[str, npt.NDArray[np.float32]]:
    """What the loss takes beside the targets, in their shape; missing weights are ones."""
    wanted = LOSSES[loss_fn].inputs
    unknown = sorted(set(tensors) - set(wanted))
    if unknown:
        raise RequestError(
            f"loss_fn_inputs {unknown[0]!r} is unknown to {loss_fn}; it takes {wanted}"
        )
    inputs = {}
    for name in wanted:
        if name not in tensors and name != "weights":
            raise RequestError(f"loss_fn_inputs lacks {name}, which {loss_fn} needs")
        values = (tensors[name] if name in tensors else np.ones(shape)).astype(np.float32)
        if values.shape != shape:
            raise RequestError(f"{name} has shape {values.shape}; target_tokens has {shape}")
        if not np.isfinite(values).all():
            raise RequestError(f"{name} holds NaN or infinity at {_first_bad(values)}")
        inputs[name] = values
    return inputs


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


def _first_bad(values: npt.NDArray[np.float32]) -> list[int]:
    return [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
