"""Arms as they will be trained, on clients and in a store that are thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.cards import Experiment
from harness.store import RunStore
from harness.tasks.gsm8k import Problem, Task
from harness.training.estimators import estimator
from harness.training.loop import ArmContext
from harness.training.prompts import Prompter
from harness.training.records import StepRecord
from harness.training.streams import arm_order

if TYPE_CHECKING:
    import tinker


@contextmanager
def throw_away_arms(
    service: tinker.ServiceClient, prompter: Prompter, experiment: Experiment, task: Task
) -> Iterator[dict[str, ArmContext]]:
    """The context of every arm by name, as the run makes it, over a store that is deleted."""
    questions = [problem.question for problem in task.train]
    spec = experiment.registration.training
    with tempfile.TemporaryDirectory(prefix="throw-away-") as folder:
        store = RunStore(Path(folder))
        yield {
            arm.name: ArmContext(
                arm=arm,
                registration=experiment.registration,
                base_model=experiment.card.base_model,
                lora_rank=experiment.card.lora_rank,
                train=task.train,
                order=arm_order(
                    spec.data_order_seed,
                    len(task.train),
                    arm.groups_per_batch,
                    arm.prompts,
                    reuse=spec.reuse_prompts,
                ),
                service=service,
                prompter=prompter,
                estimator=estimator(arm, questions),
                entry=store.entry(f"arm/{arm.name}", {"arm": arm.name}),
                before_step=_never_stop,
                after_step=_ignore,
            )
            for arm in experiment.arms
        }


def text_tokens(prompter: Prompter, problem: Problem) -> list[int]:
    """A problem's rendered prompt and its worked solution."""
    solution = prompter.renderer.tokenizer.encode(problem.solution, add_special_tokens=False)
    return [*prompter.tokens(problem).to_ints(), *(int(token) for token in solution)]


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


async def forward(
    client: tinker.TrainingClient, rows: Sequence[Sequence[int]]
) -> list[NDArray[np.float64]]:
    """Log-probs of all tokens but the first of each row, without a gradient."""
    import tinker

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


def _never_stop() -> None:
    """A probe has no wall cap of its own."""


def _ignore(record: StepRecord) -> None:
    """A probe shows no live line."""
