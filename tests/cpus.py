"""Runs what rests on equal bits under other kernels and numbers of threads of this machine.

    python tests/cpus.py [--only TEXT] [PYTEST ARGUMENTS]

One setting after the other, each with the sampler's, the model's, the undisturbed and the
interrupted tests, or with what is given instead. Prints a Markdown table; a setting that asks for
more than this processor has is a row that says so. Exits with 1 if a test failed under any.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/engine/test_engine_sampler.py",
    "tests/engine/test_engine_model.py",
    "tests/engine/test_engine_kernel_probe.py",
    "tests/end_to_end/test_undisturbed.py",
    "tests/end_to_end/test_interrupted.py",
]
LEVELS = ["DEFAULT", "AVX2", "AVX512"]


@dataclass(frozen=True)
class Setting:
    """Environment variables, and the instructions that the processor must have for them."""

    variables: dict[str, str]
    needs: str = "DEFAULT"

    @property
    def name(self) -> str:
        """The variables as a shell has them."""
        return " ".join(f"{name}={value}" for name, value in self.variables.items())


def _threads(count: int) -> Setting:
    """So many cores seen by the engine, a worker each, and threads of the process that tests."""
    return Setting({"SESSION_CORES": str(count), "OMP_NUM_THREADS": str(count)})


SETTINGS = [
    Setting({"ATEN_CPU_CAPABILITY": "default"}),
    Setting({"ATEN_CPU_CAPABILITY": "avx2"}, "AVX2"),
    Setting({"ATEN_CPU_CAPABILITY": "avx512"}, "AVX512"),
    Setting({"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    Setting({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "AVX2"),
    Setting({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "AVX512"),
    Setting({"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    Setting({"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "AVX2"),
    Setting({"MKL_ENABLE_INSTRUCTIONS": "AVX512"}, "AVX512"),
    Setting({"MKL_CBWR": "COMPATIBLE"}),
    Setting({"MKL_CBWR": "AVX2"}, "AVX2"),
    Setting({"MKL_CBWR": "AVX512"}, "AVX512"),
    _threads(1),
    _threads(2),
    _threads(4),
]

ARRANGEMENT = """
import torch; torch.set_num_threads(1)
from harness.embedded import MODEL_DIR
from harness.engine.base_model import read_config, read_weights
from harness.engine.kernel_probe import arrangement_of
config = read_config(MODEL_DIR)
print(arrangement_of(config, read_weights(MODEL_DIR, config)))
"""
CAPABILITY = "import torch; print(torch.backends.cpu.get_cpu_capability())"


def main() -> int:
    """Run every setting, print its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="settings whose name holds this text")
    options, arguments = parser.parse_known_args()
    capability = _said(CAPABILITY, {"ATEN_CPU_CAPABILITY": ""})
    sys.stdout.write(f"This processor has {capability}.\n\n")
    _row("setting", "outcome", "seconds", "engine")
    _row(*["---"] * 4)
    failed = False
    for setting in SETTINGS:
        if options.only not in setting.name:
            continue
        if LEVELS.index(setting.needs) > LEVELS.index(capability):
            _row(setting.name, f"not run: this processor lacks {setting.needs}", "", "")
            continue
        began = time.monotonic()
        engine = _said(ARRANGEMENT, setting.variables)
        ended, outcome = _tested(setting, arguments or TESTS)
        failed = failed or ended != 0
        _row(setting.name, outcome, f"{time.monotonic() - began:.0f}", engine)
    return int(failed)


def _row(*cells: str) -> None:
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def _tested(setting: Setting, arguments: list[str]) -> tuple[int, str]:
    """pytest's exit code and the last line it printed; failures go to stderr."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    command += ["--no-loadscope-reorder", "-p", "no:cacheprovider", *arguments]
    environ = {**os.environ, **setting.variables}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(f"{setting.name}\n{done.stdout}{done.stderr}\n")
    return done.returncode, (done.stdout.splitlines() or ["nothing"])[-1].strip("= ")


def _said(program: str, variables: dict[str, str]) -> str:
    """What a program prints in this environment."""
    environ = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    return done.stdout.strip() or f"ended with {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
