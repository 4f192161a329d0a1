"""What the engine computed, as the protobuf messages that the SDK reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from harness.engine.futures import PROTOBUF, Answer
from harness.engine.protobuf import pb
from harness.engine.sequences import SampleRequest


def forward_backward_answer(
    logprobs: Sequence[npt.NDArray[np.float32]], metrics: Mapping[str, float]
) -> Answer:
    """One record per distinct number of targets; normally there is one."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=metrics)
    start = 0
    for stop in range(1, len(logprobs) + 1):
        if stop < len(logprobs) and logprobs[stop].shape[1:] == logprobs[start].shape[1:]:
            continue
        run = logprobs[start:stop]
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(run))
        field = record.fields["logprobs"]
        field.data = b"".join(row.tobytes() for row in run)
        field.offsets = np.cumsum([0, *(row.nbytes for row in run)], dtype=np.int64).tobytes()
        field.dtype = pb.DTYPE_FLOAT32
        field.trailing_shape.extend(run[0].shape[1:])
        start = stop
    return Answer(message.SerializeToString(), PROTOBUF)


def sample_answer(request: SampleRequest) -> Answer:
    """The finished sequences, and the prompt's scores where they were asked for."""
    message = pb.SampleResponse()
    for sequence in request.sequences:
        message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if sequence.stopped else pb.STOP_REASON_LENGTH,
            tokens=np.array(sequence.tokens, dtype=np.int32).tobytes(),
            logprobs=np.array(sequence.logprobs, dtype=np.float32).tobytes(),
        )
    scores = request.prompt_scores
    if scores is not None and request.prompt_wanted.logprobs:
        message.prompt_logprobs = scores.logprobs_N.tobytes()
    if scores is not None and scores.top_ids_N_K is not None:
        top = message.topk_prompt_logprobs
        top.k, top.prompt_length = scores.top_ids_N_K.shape[1], scores.top_ids_N_K.shape[0]
        top.token_ids = scores.top_ids_N_K.tobytes()
        top.logprobs = (
            scores.top_logprobs_N_K.tobytes() if scores.top_logprobs_N_K is not None else b""
        )
    return Answer(message.SerializeToString(), PROTOBUF)
