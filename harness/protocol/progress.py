"""Where the arms are, left in a file a arm, so that any process can show a live line."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import orjson

from harness.protocol.stages import Progress
from harness.store.files import make_folder, write_atomic


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
