"""The lab's questions of an experiment: its data and kernel in, comparisons and a report out."""

from collections.abc import Sequence
from pathlib import Path

from harness.cards import Experiment, Kernel
from harness.errors import DataError
from harness.lab import pools
from harness.lab.baselines import Comparison, compare, lines
from harness.lab.plot import plot
from harness.methods import PromptKernel, fit_tfidf
from harness.methods.pool import Design
from harness.store.files import write_atomic
from harness.tasks.gsm8k import Task

PROMPTS, ROLLOUTS, BATCH = 1024, 8, 64
PASSES = 100  # over a saved pool, which is small


def simulated(experiment: Experiment, task: Task) -> list[Comparison]:
    """The train split's texts with rewards of each difficulty model.

    Raises:
        DataError: fewer than 1,024 train prompts, or no arm has a kernel.
    """
    kernel, fitted = kernel_of(experiment, task)
    found = [
        pools.simulated_pool(task.train, model, PROMPTS, ROLLOUTS, seed=0) for model in pools.MODELS
    ]
    return [compare(pool, kernel, fitted, Design(batch_size=BATCH)) for pool in found]


def saved(experiment: Experiment, task: Task, runs_dir: Path) -> list[Comparison]:
    """The groups that the grouped baseline arm of a stored run has sampled.

    Half of a window's prompts choose a kernel and half score it, so the batch is smaller where
    the run drew few prompts.

    Raises:
        NothingStored: no complete run of that arm is stored.
        DataError: no arm has a kernel.
    """
    kernel, fitted = kernel_of(experiment, task)
    arm = experiment.role("baseline")[0]
    records = pools.stored_records(experiment, arm, runs_dir)
    texts = [problem.question for problem in task.train]
    found = pools.saved_pools(experiment, arm, records, texts)
    batch = min(BATCH, *(len(pool.questions) // 2 for pool in found))
    design = Design(batch_size=batch, passes=PASSES)
    return [compare(pool, kernel, fitted, design) for pool in found]


def kernel_of(experiment: Experiment, task: Task) -> tuple[Kernel, PromptKernel]:
    """The registered kernel of the first arm that has one, and TF-IDF as that arm fits it.

    Raises:
        DataError: no arm has a kernel.
    """
    kernel = next((arm.tfidf for arm in experiment.arms if arm.tfidf is not None), None)
    if kernel is None:
        raise DataError(f"{experiment.id}: no arm has a kernel; ask another card")
    return kernel, fit_tfidf([problem.question for problem in task.train], kernel)


def report(found: Sequence[Comparison], path: Path) -> str:
    """Write `<path>.txt` and `<path>.png`, each whole or not at all; returns the text."""
    picture = plot(found, path.with_name(f"{path.name}.png"), path.name)
    text = "\n\n".join("\n".join(lines(comparison)) for comparison in found) + "\n"
    write_atomic(path.with_name(f"{path.name}.txt"), text.encode())
    return f"{text}plot: {picture}\n"
