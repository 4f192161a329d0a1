"""Real processes for the store's tests: they are started, killed and always reaped."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Spawn = Callable[..., "subprocess.Popen[str]"]

HEADER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from harness.store import RunStore, produce_all

def wait_for(condition, what):
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.02)
    raise SystemExit(f"waited 100 s for {what}")

def kill_self():
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(name="spawn")
def _spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start `HEADER + script` in a process of its own; `argv` reaches it as sys.argv[1:]."""
    processes: list[subprocess.Popen[str]] = []

    def spawn(script: str, *argv: object, prefix: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        path = tmp_path / f"script_{len(processes)}.py"
        path.write_text(HEADER + script)
        command = [*prefix, sys.executable, str(path), *map(str, argv)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield spawn
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def lines_of(process: "subprocess.Popen[str]", code: int = 0) -> list[str]:
    """Wait for the process and return its lines; fail with its stderr if it ended otherwise."""
    out, err = process.communicate(timeout=150)
    assert process.returncode == code, err
    return out.splitlines()


@pytest.fixture(name="lines_of")
def _lines_of() -> Callable[..., list[str]]:
    return lines_of
