"""Servers of this machine for as long as a benchmark needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def serving(
    arguments: Sequence[str | Path], log: IO[str] | None = None
) -> Iterator[tuple[str, int]]:
    """Run Python with these arguments: the address on the first line it prints, and its pid.

    What it logs goes to `log`, else to this process's stderr.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()
            process.wait()


def engine_arguments(model: Path, state: Path, *more: str) -> list[str]:
    """Python's arguments for an engine that ends with this process."""
    command = ["-m", "harness.engine", "--base-model", str(model), "--state", str(state)]
    return [*command, "--exit-with", str(os.getpid()), *more]
