"""The cookbook's own programs against an engine; `benchmarks/cookbook_programs.py` has them all."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cookbook_programs.py"


def test_the_cookbook_s_programs_run_untouched(tmp_path: Path) -> None:
    """Both end with 0: the supervised loss falls, asynchronous RL lags by at most two steps."""
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", "sl_loop,off_policy", "--steps", "1",
         "--keep", str(tmp_path)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "sl_loop" in ended.stdout
    assert "off_policy" in ended.stdout
