"""Where the arms are, left in a file a arm, so that any process can show a live line."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import orjson

from harness.cards import Experiment
from harness.protocol.stages import Progress
from harness.records import Row, StepRecord
from harness.store.files import make_folder, write_atomic


class LiveLine:
    """Keeps one arm's line up to date."""

    def __init__(
        self, runs_dir: Path, experiment: Experiment, arm: str, stage: str, steps: int
    ) -> None:
        self._folder = progress_folder(runs_dir, experiment.id, experiment.scale.name)
        self._arm, self._stage, self._steps = arm, stage, steps
        self._started = time.monotonic()

    def step(self, record: StepRecord) -> None:
        """A training step is done."""
        seconds, metrics = sum(record["seconds"].values()), record["metrics"]
        left = (self._steps - record["step"] - 1) * seconds
        self._write(record["step"] + 1, metrics["reward"], metrics["tokens"] / seconds, left)

    def items(self, rows: Sequence[Row]) -> None:
        """These items are evaluated."""
        spent, done = time.monotonic() - self._started, len(rows)
        tokens = sum(row["n_tokens"] for row in rows)
        self._write(done, None, tokens / spent, spent / done * (self._steps - done))

    def _write(self, step: int, reward: float | None, rate: float, left: float) -> None:
        line = Progress(self._arm, self._stage, step, self._steps, reward, rate, left)
        write_progress(self._folder, line)


def progress_folder(runs_dir: Path, experiment: str, scale: str) -> Path:
    """The folder with one file an arm."""
    return runs_dir / "progress" / f"{experiment}.{scale}"


def write_progress(folder: Path, progress: Progress) -> None:
    """Leave an arm's live line; it is only for show, so it is not flushed to the disk."""
    make_folder(folder)
    write_atomic(folder / f"{progress.arm}.json", orjson.dumps(asdict(progress)), durable=False)


def read_progress(runs_dir: Path, experiment: str, scale: str) -> tuple[Progress, ...]:
    """The live lines left by now, by arm, those of earlier runs included; never waits.

    A file that is broken is left out. Whoever shows lines of the present leaves out those that were
    there when it began.
    """
    lines = []
    for path in sorted(progress_folder(runs_dir, experiment, scale).glob("*.json")):
        with suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            lines.append(_progress(orjson.loads(path.read_bytes())))
    return tuple(lines)


def _progress(document: Mapping[str, object]) -> Progress:
    fields = {name: document[name] for name in Progress.__dataclass_fields__}
    return Progress(**fields)  # type: ignore[arg-type]  # written by write_progress
