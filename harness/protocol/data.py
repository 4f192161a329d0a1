"""The data of a scale: generated word problems, or a folder with the GSM8K files."""

from collections.abc import Mapping
from pathlib import Path

from harness.cards import Experiment
from harness.errors import DataError
from harness.tasks.gsm8k import FILES, Task, load_split, load_task
from harness.tasks.records import data_sha256


def experiment_task(experiment: Experiment, runs_dir: Path, data_dir: Path | None) -> Task:
    """The train and test splits that the experiment names, counted and hashed.

    Raises:
        DataError: no folder was given, a file is missing or truncated, or its hash is not the
            registered one.
    """
    folder = _folder(experiment, runs_dir, data_dir)
    task = load_task(folder, experiment.card)
    _refuse_other_files(experiment, folder, task.sha256s)
    return task


def train_task(experiment: Experiment, runs_dir: Path, data_dir: Path | None) -> Task:
    """The train split alone: of the test split not a byte is read, and `test` is empty.

    Raises:
        DataError: as `experiment_task`, for the train split.
    """
    folder = _folder(experiment, runs_dir, data_dir)
    count = experiment.card.dataset.n_examples
    train = load_split(folder / FILES["train"], "train", count)[:count]
    sha256s = {"train": data_sha256(folder / FILES["train"])}
    _refuse_other_files(experiment, folder, sha256s)
    return Task(tuple(train), (), sha256s)


def _folder(experiment: Experiment, runs_dir: Path, data_dir: Path | None) -> Path:
    if experiment.scale.data == "embedded":
        from harness.embedded import write_splits

        folder = runs_dir / "data"
        write_splits(folder)
        return folder
    if data_dir is None:
        raise DataError(
            f"scale {experiment.scale.name} needs the GSM8K files: give a folder with train.jsonl "
            "and test.jsonl by --gsm8k-dir or HARNESS_GSM8K_DIR"
        )
    return data_dir


def _refuse_other_files(experiment: Experiment, folder: Path, sha256s: Mapping[str, str]) -> None:
    pinned = experiment.registration.data
    registered = {"train": pinned.train_sha256, "test": pinned.test_sha256}
    problems = [
        f"{folder / FILES[split]}: sha256 {found[:12]} is not the registered "
        f"{registered[split][:12]}; use the registered file"
        for split, found in sha256s.items()
        if found != registered[split]
    ]
    if problems:
        raise DataError("\n".join(problems))


def refuse_too_few_prompts(experiment: Experiment, task: Task) -> None:
    """Every arm needs the prompts that it and probes consume; of reused ones, those of a step.

    Raises:
        DataError: one line for each arm that needs more than the train split has.
    """
    training, probe = experiment.registration.training, experiment.registration.gradient_probe
    needed = [
        (arm, arm.prompts + (0 if probe is None else probe.prompts(arm.steps)))
        for arm in experiment.arms
    ]
    problems = [
        f"arm {arm.name}: {arm.steps} steps of {arm.groups_per_batch} prompts need {count}, "
        f"but the train split has {len(task.train)}; give it more data or fewer steps"
        for arm, count in needed
        if (arm.groups_per_batch if training.reuse_prompts else count) > len(task.train)
    ]
    if problems:
        raise DataError("\n".join(problems))
