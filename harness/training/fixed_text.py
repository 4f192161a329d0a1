"""Log-probs of texts that nobody sampled: what a policy makes of a fixed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tinker


async def forward(
    client: tinker.TrainingClient, rows: Sequence[Sequence[int]]
) -> list[NDArray[np.float64]]:
    """Log-probs of all tokens but the first of each row, without a gradient; none of no row."""
    import tinker

    if not rows:
        return []

    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(list(row[:-1])),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData.from_numpy(np.asarray(row[1:], dtype=np.int64)),
                "weights": tinker.TensorData.from_numpy(np.zeros(len(row) - 1, dtype=np.float32)),
            },
        )
        for row in rows
    ]
    result = await (await client.forward_async(data, "cross_entropy")).result_async()
    return output_logprobs(result)


def output_logprobs(result: tinker.ForwardBackwardOutput) -> list[NDArray[np.float64]]:
    """The log-probs that came back, one row a datum."""
    return [
        np.asarray(output["logprobs"].tolist(), dtype=np.float64)
        for output in result.loss_fn_outputs
    ]
