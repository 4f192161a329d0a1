"""A process that is forked behaves as one that is executed."""

import os
import signal
import subprocess
import sys

import forked
import pytest

KINDS = [subprocess.Popen, forked.Popen]
SAYS = """
import os, sys
print(sys.stdin.readline().strip(), os.environ["SAID"], os.getcwd(), os.getpid() == os.getsid(0))
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", KINDS, ids=["executed", "forked"])
def test_it_has_its_own_input_environment_folder_session_and_exit_code(kind, tmp_path):
    """What is asked of `subprocess.Popen` holds, whichever way the process began."""
    process = kind(
        [sys.executable, "-u", "-c", SAYS, "7"], cwd=tmp_path, text=True, start_new_session=True,
        env=os.environ | {"SAID": "this"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    output, _ = process.communicate("given\n")

    assert output.splitlines()[0] == f"given this {tmp_path} True"
    assert process.returncode == 7


@pytest.mark.parametrize("kind", KINDS, ids=["executed", "forked"])
def test_it_is_told_apart_from_one_that_was_killed(kind):
    """A signal is the negative exit code; a process that lasts has none."""
    process = kind([sys.executable, "-u", "-c", "import time; time.sleep(60)"])

    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()

    assert process.wait(10) == process.poll() == -signal.SIGKILL


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "PYTHONHASHSEED"])
def test_what_acts_at_the_start_of_python_is_executed(variable):
    """A variable that the server could not know is in force."""
    command = [sys.executable, "-u", "-c", "import sys; print('torch' in sys.modules)"]
    outputs = [
        forked.Popen(command, env=env, stdout=subprocess.PIPE, text=True).communicate()[0].strip()
        for env in (dict(os.environ), os.environ | {variable: "2"})
    ]

    assert outputs == [str(os.environ.get("OMP_NUM_THREADS") == "1"), "False"]
