"""What a run left in its store, read for comparison."""

import shutil
from pathlib import Path
from typing import Any

from mini import ARMS

from harness.store import Entry, RunStore

POLICIES = (*ARMS, "base")


def entry(runs: Path, name: str) -> Entry:
    """The only entry of that name."""
    (found,) = RunStore(runs).entries(name)
    return found


def arm(runs: Path, name: str) -> Entry:
    """The entry of an arm's training."""
    return entry(runs, f"arm/{name}")


def training(runs: Path) -> dict[str, list[dict[str, Any]]]:
    """Every step record of every arm, without its durations."""
    return {name: steps(arm(runs, name)) for name in ARMS}


def steps(of: Entry) -> list[dict[str, Any]]:
    """The step records of an entry, without their durations."""
    records = [of.read_step(step) for step in of.steps()]
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def rows(runs: Path) -> dict[str, list[dict[str, Any]]]:
    """The per-item rows of both arms and the base model."""
    return {name: entry(runs, f"evaluation/{name}").read("rows") for name in POLICIES}


def attempts(runs: Path) -> dict[str, int]:
    """How often each arm's training was started."""
    return {name: len(arm(runs, name).attempts()) for name in ARMS}


def step_files(runs: Path, name: str) -> dict[int, tuple[int, int]]:
    """(inode, mtime in ns) of each step's file of an arm: a rewritten record has others."""
    folder = arm(runs, name).folder / "records"
    stats = {int(p.name[5:11]): p.stat() for p in folder.glob("step-*")}
    return {step: (stat.st_ino, stat.st_mtime_ns) for step, stat in stats.items()}


def intervals(runs: Path, name: str) -> list[list[float]]:
    """When an arm was being trained."""
    clock: list[list[float]] = arm(runs, name).read("clock")
    return clock


def copied(runs: Path, folder: Path) -> Path:
    """A runs-dir with the same entries and data, without an engine's state."""
    shutil.copytree(runs, folder / "runs", ignore=shutil.ignore_patterns("engine*"))
    return folder / "runs"
