"""Starting an engine process for tests."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import forked


@dataclass
class Engine:
    """A running engine process."""

    process: subprocess.Popen[str]
    url: str
    folder: Path
    state: Path

    def end(self) -> None:
        """SIGTERM, and wait."""
        self.process.terminate()
        self._reap()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()


def launch(folder: Path, state: Path, *more: str) -> subprocess.Popen[str]:
    """Start an engine; its log goes to a file beside the state folder."""
    with (state.parent / f"{state.name}.log").open("a") as log:
        return forked.Popen(
            [
                sys.executable, "-m", "harness.engine", "--base-model", str(folder),
                "--state", str(state), "--exit-with", str(os.getpid()), *more,
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )  # fmt: skip


def start_engine(folder: Path, state: Path, *more: str) -> Engine:
    """Start an engine and wait for its address."""
    process = launch(folder, state, *more)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:"), (state.parent / f"{state.name}.log").read_text()
    return Engine(process, url, folder, state)
