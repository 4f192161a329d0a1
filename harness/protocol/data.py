"""The data of a scale: generated word problems, or a folder with the GSM8K files."""

from pathlib import Path

from harness.cards import Experiment
from harness.errors import DataError
from harness.tasks.gsm8k import FILES, Task, load_task


def experiment_task(experiment: Experiment, runs_dir: Path, data_dir: Path | None) -> Task:
    """The train and test splits that the experiment names, counted and hashed.

    Raises:
        DataError: no folder was given, a file is missing or truncated, or its hash is not the
            registered one.
    """
    if experiment.scale.data == "embedded":
        from harness.embedded import write_splits

        folder = runs_dir / "data"
        write_splits(folder)
    elif data_dir is None:
        raise DataError(
            f"scale {experiment.scale.name} needs the GSM8K files: give a folder with train.jsonl "
            "and test.jsonl by --gsm8k-dir or HARNESS_GSM8K_DIR"
        )
    else:
        folder = data_dir
    task = load_task(folder, experiment.card)
    pinned = experiment.registration.data
    problems = [
        f"{folder / FILES[split]}: sha256 {task.sha256s[split][:12]} is not the registered "
        f"{expected[:12]}; use the registered file"
        for split, expected in (("train", pinned.train_sha256), ("test", pinned.test_sha256))
        if task.sha256s[split] != expected
    ]
    if problems:
        raise DataError("\n".join(problems))
    return task


def refuse_too_few_prompts(experiment: Experiment, task: Task) -> None:
    """No prompt is drawn twice, so every arm needs as many as it consumes.

    Raises:
        DataError: one line for each arm that needs more than the train split has.
    """
    problems = [
        f"arm {arm.name}: {arm.steps} steps of {arm.groups_per_batch} prompts need {arm.prompts}, "
        f"but the train split has {len(task.train)}; give it more data or fewer steps"
        for arm in experiment.arms
        if arm.prompts > len(task.train)
    ]
    if problems:
        raise DataError("\n".join(problems))
