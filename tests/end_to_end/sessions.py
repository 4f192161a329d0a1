"""pytest as a user starts it: a process of its own, and what it said."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import forked
from forked import MARK, NAME_BYTES
from mini import ROOT

from harness.embedded import MODEL_DIR, MODEL_NAME

HERE = Path(__file__).parent
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's job in the background ignores Ctrl-C, and whatever it starts would too
    signal.signal(signal.SIGINT, signal.default_int_handler)
EXPERIMENT = "test_gs1.py"
# a traceback's error, not the letter of an item's error with the percentage at the line's end
ERROR_LINE = re.compile(r"^E {3,}(?! *\[ *\d+%\])", re.MULTILINE)


@dataclass
class Session:
    """A pytest process on the experiment file, and every process that came of it.

    `mark` is an environment variable's value: it finds the processes, and may never be shown.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    runs: Path
    mark: str
    started: float
    seconds: float = 0.0

    def wait(self, timeout: float = 600) -> "Session":
        """Wait until it has ended."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.signal_group(signal.SIGKILL)
            raise AssertionError(f"pytest did not end:\n{self.output}") from None
        self.seconds = time.monotonic() - self.started
        assert self.mark not in self.output
        return self

    def write(self, path: Path) -> None:
        """Put down what is left of an ended session, for other processes to read."""
        left = {"runs": str(self.runs), "folder": str(self.folder), "mark": self.mark}
        path.write_text(json.dumps({**left, "exit": self.exit, "seconds": self.seconds}))

    @classmethod
    def read(cls, path: Path) -> "Session":
        """An ended session that some process has put down."""
        left = json.loads(path.read_text())
        process: Any = SimpleNamespace(returncode=left["exit"])
        folders = Path(left["folder"]), Path(left["runs"])
        return cls(process, *folders, left["mark"], 0.0, left["seconds"])

    def signal_group(self, number: int) -> None:
        """Signal pytest and its workers, as a terminal does."""
        os.killpg(self.process.pid, number)

    def kill(self, *, group: bool) -> None:
        """SIGKILL, to the process that the user started or to its workers too."""
        if group:
            self.signal_group(signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(60)

    def reached(self, path: Path, timeout: float = 600) -> None:
        """Wait until a file is there."""
        deadline = time.monotonic() + timeout
        while not path.exists():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.01)

    @property
    def exit(self) -> int:
        """The exit code."""
        return self.process.returncode

    @property
    def output(self) -> str:
        """stdout and stderr."""
        return (self.folder / "output").read_text(errors="replace")

    @property
    def tail(self) -> str:
        """What it said last."""
        return "\n".join(self.output.splitlines()[-40:])

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """verdict.json."""
        document: dict[str, Any] = json.loads((self.folder / "verdict.json").read_text())
        return document

    @cached_property
    def junit(self) -> dict[str, dict[str, str]]:
        """Properties by test case."""
        cases = ET.parse(self.folder / "junit.xml").getroot().iter("testcase")
        return {
            case.attrib["name"]: {
                p.attrib["name"]: p.attrib["value"] for p in case.iter("property")
            }
            for case in cases
        }

    def processes(self) -> dict[int, str]:
        """The command lines of the processes of this session that are still there, by id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                # a zombie has no environment left
                named = (folder / "comm").read_text().strip() == self.mark[:NAME_BYTES]
                if named or self.mark.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return found

    def engine(self) -> int:
        """The process id of the engine that it started."""
        pid: int = json.loads((self.runs / "engine" / "address.json").read_text())["pid"]
        return pid

    def end_of_processes(self, timeout: float = 60) -> None:
        """Wait until no process of this session is left.

        xdist gives a worker without a controller 15 s to end what it is doing.
        """
        deadline = time.monotonic() + timeout
        while left := self.processes():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)


def start(
    folder: Path,
    *arguments: str,
    scale: Path | str,
    runs: Path,
    environ: Mapping[str, str] | None = None,
    project: Path = ROOT,
    experiment: str = EXPERIMENT,
    executed: bool = False,
) -> Session:
    """Start pytest on the experiment.

    Args:
        folder: where its output, verdict and JUnit file go; made if missing.
        arguments: more of pytest's.
        scale: what `--scale` gets.
        runs: the runs-dir.
        environ: added to a clean environment.
        project: the project that it runs in.
        experiment: the test file of the experiment.
        executed: start an interpreter as a user does, instead of forking one that has imported.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = f"canary-{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "pytest", f"experiments/{experiment}"]
    command += ["--scale", str(scale), "--runs-dir", str(runs), "-p", "no:cacheprovider"]
    command += ["--verdict-json", str(folder / "verdict.json")]
    command += [f"--junitxml={folder / 'junit.xml'}", *arguments]
    with (folder / "output").open("wb") as output:
        process = (subprocess.Popen if executed else forked.Popen)(
            command,
            cwd=project,
            env={**clean_environment(), MARK: mark, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Session(process, folder, runs, mark, time.monotonic())


def start_and_stop_at(
    folder: Path,
    moment: str,
    *arguments: str,
    scale: Path | str,
    runs: Path,
    plant: str = "pause",
    experiment: str = EXPERIMENT,
    environ: Mapping[str, str] | None = None,
    project: Path = ROOT,
) -> Session:
    """A run that has reached its moment, an arm and step as `arm:step`, and is about to be harmed.

    With `pause` it stops there for good, after the update and before its record; with `mark` before
    the step, until the marker is removed.
    """
    marker = folder.with_name(f"{folder.name}.marker")
    session = start(
        folder, "-p", "planted", *arguments, scale=scale, runs=runs, experiment=experiment,
        project=project,
        environ={
            "HARNESS_TEST_PLANT": plant,
            "HARNESS_TEST_AT": moment,
            "HARNESS_TEST_MARKER": str(marker),
            **(environ or {}),
        },
    )  # fmt: skip
    session.reached(marker)
    return session


def clean_environment() -> dict[str, str]:
    """This process's environment without what steers pytest, the harness or the SDK."""
    steering = ("PYTEST_", "HARNESS_", "TINKER_", "COV_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return kept | {
        # this project and the plugins beside this file, for workers and engine too
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, HERE, HERE.parent))),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TINKER_TELEMETRY": "0",
        "NO_PROXY": "127.0.0.1,localhost",
        "COLUMNS": "200",
    }


@dataclass(frozen=True)
class Engine:
    """An engine that somebody else started."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def started_engine(folder: Path, key: str | None = None) -> Iterator[Engine]:
    """An engine with its state and its log below `folder`; with a key it asks for that."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "harness.engine", "--base-model", str(MODEL_DIR)]
    command += ["--model-name", MODEL_NAME, "--state", str(folder / "state")]
    command += ["--exit-with", str(os.getpid())]
    environ = clean_environment()
    if key is not None:
        command += ["--api-key-env", "SERVICE_KEY"]
        environ["SERVICE_KEY"] = key
    with (folder / "log").open("w") as log:
        process = forked.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), (folder / "log").read_text()
        yield Engine(url, process)
        process.terminate()


def run(folder: Path, *arguments: str, **options: Any) -> Session:
    """Start pytest on the experiment and wait for its end; see `start`."""
    return start(folder, *arguments, **options).wait()


def assert_one_line(session: Session, *parts: str) -> str:
    """The session told its user in one line that holds all the parts; returns that line.

    It did not break: no traceback, no internal error, no half-written file, a non-zero exit.
    """
    output = session.output
    assert session.exit not in (0, 3), output
    for sign in ("Traceback (most recent", "INTERNALERROR"):
        assert sign not in output, output
    assert not ERROR_LINE.search(output), output
    assert not list(session.runs.rglob(".tmp-*"))
    lines = [line for line in output.splitlines() if all(part in line for part in parts)]
    assert lines, f"no line holds {parts}:\n{output}"
    return min(lines, key=len)
