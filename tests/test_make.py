"""`make test` makes the environment that the tests need."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STEERING = (
    "TINKER_BASE_URL", "TINKER_API_KEY", "HARNESS_RUNS_DIR", "HARNESS_GSM8K_DIR", "HARNESS_SEC_DIR",
)  # fmt: skip


@pytest.mark.parametrize("target", ["test", "test-cpus"])
def test_tests_see_nothing_of_the_developers_service_and_data(target: str, tmp_path: Path) -> None:
    """What steers a run is unset, telemetry is off, and no proxy stands before loopback."""
    programs, seen = tmp_path / "venv" / "bin", tmp_path / "seen.json"
    programs.mkdir(parents=True)
    for name in ("ruff", "mypy", "python"):
        dump = f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
        (programs / name).write_text(f'#!/bin/sh\nexec python3 -c "{dump}"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "venv" / ".installed").touch()

    subprocess.run(
        ["make", target, f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        env={**os.environ, **dict.fromkeys(STEERING, "somewhere"), "NO_PROXY": "elsewhere"},
        check=True,
        capture_output=True,
    )

    environ = json.loads(seen.read_text())
    assert not environ.keys() & set(STEERING)
    assert environ["TINKER_TELEMETRY"] == "0"
    assert environ["NO_PROXY"] == "127.0.0.1,localhost"
