"""Arms as they will be trained, on clients and in a store that are thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.audit.tracing import step_tracer
from harness.cards import Experiment
from harness.cards.registration import LossBackend
from harness.store import RunStore
from harness.tasks.task import Task
from harness.training.context import ArmContext, arm_context
from harness.training.task_adapter import AnyAdapter

if TYPE_CHECKING:
    import tinker


@contextmanager
def throw_away_arms(
    service: tinker.ServiceClient,
    adapter: AnyAdapter,
    experiment: Experiment,
    task: Task,
    losses: Mapping[str, LossBackend] | None = None,
) -> Iterator[dict[str, ArmContext]]:
    """The context of every arm by name, as the run makes it, over a store that is deleted."""
    with tempfile.TemporaryDirectory(prefix="throw-away-") as folder:
        store = RunStore(Path(folder))
        yield {
            arm.name: arm_context(
                experiment,
                arm,
                task,
                service,
                adapter,
                store.entry(f"arm/{arm.name}", {"arm": arm.name}),
                loss_backend=arm.loss_backends[0] if losses is None else losses[arm.name],
                tracer=step_tracer(experiment, adapter, replayed=None),
            )
            for arm in experiment.arms
        }


def loss_datum(
    tokens: Sequence[int], logprobs_T: Sequence[float], advantages_T: Sequence[float]
) -> tinker.Datum:
    """A datum of a policy loss over all tokens but the first; T is one less than the tokens."""
    import tinker

    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.asarray(tokens[1:], dtype=np.int64)),
            "logprobs": tinker.TensorData.from_numpy(np.asarray(logprobs_T, dtype=np.float32)),
            "advantages": tinker.TensorData.from_numpy(np.asarray(advantages_T, dtype=np.float32)),
        },
    )
