"""Command line, environment and markers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

MARKERS = {
    "preflight": "checked before any training",
    "gate": "measured on the pilot: the treatment really happens",
    "decision": "the registered rule applied to a criterion",
    "selftest": "the harness examines itself",
}

_CONTROLLER_PID = "harness_controller_pid"


@dataclass(frozen=True)
class Settings:
    """What the user asked for, the same in the controller and in every xdist worker.

    Paths are absolute. `controller_pid` is the process that the user started; `worker` is `main`
    in that process, `gw0`, `gw1`, ... in the workers of xdist.
    """

    scale: str
    runs_dir: Path
    verdict_json: Path | None
    require_verdict: bool
    retrain: bool
    gsm8k_dir: Path | None
    controller_pid: int
    worker: str


SETTINGS = pytest.StashKey[Settings]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the harness's options."""
    group = parser.getgroup("harness", "experiments")
    group.addoption(
        "--scale",
        default="embedded",
        metavar="embedded|full|FILE",
        help="the card at laptop size (default), as registered, or changed by a scale file",
    )
    group.addoption(
        "--runs-dir",
        metavar="DIR",
        help="run store and verdicts (default: HARNESS_RUNS_DIR, else runs/ beside pytest.ini)",
    )
    group.addoption(
        "--verdict-json",
        metavar="FILE",
        help="write the verdict here too: one object, or a list if several experiments ran",
    )
    group.addoption(
        "--require-verdict",
        action="store_true",
        help="exit 10 if the verdict is INCONCLUSIVE, 11 if none was reached, instead of 0",
    )
    group.addoption(
        "--retrain", action="store_true", help="make everything again, whatever is stored"
    )
    group.addoption(
        "--gsm8k-dir",
        metavar="DIR",
        help="folder with train.jsonl and test.jsonl (default: HARNESS_GSM8K_DIR)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and settle what the options mean."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.stash[SETTINGS] = settings(config, os.environ)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Tell each xdist worker which process the user started."""
    node.workerinput[_CONTROLLER_PID] = os.getpid()  # type: ignore[attr-defined]  # xdist is untyped


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs items for an xdist controller."""
    return hasattr(config, "workerinput")


def settings(config: pytest.Config, environ: Mapping[str, str]) -> Settings:
    """Read options and environment; an option wins over its variable."""
    here = config.invocation_params.dir
    scale: str = config.getoption("scale")
    runs_dir = config.getoption("runs_dir") or environ.get("HARNESS_RUNS_DIR")
    verdict_json = config.getoption("verdict_json")
    gsm8k_dir = config.getoption("gsm8k_dir") or environ.get("HARNESS_GSM8K_DIR")
    workerinput = getattr(config, "workerinput", {})
    return Settings(
        scale=scale if scale in ("embedded", "full") else str(here / scale),
        # the default does not move with the folder that pytest is called from: neither do the runs
        runs_dir=here / runs_dir if runs_dir else config.rootpath / "runs",
        verdict_json=here / verdict_json if verdict_json else None,
        require_verdict=config.getoption("require_verdict"),
        retrain=config.getoption("retrain"),
        gsm8k_dir=here / gsm8k_dir if gsm8k_dir else None,
        controller_pid=workerinput.get(_CONTROLLER_PID, os.getpid()),
        worker=workerinput.get("workerid", "main"),
    )
