"""A run that is killed at the worst moment goes on from its checkpoint to the same results."""

import os
import signal
from pathlib import Path

import pytest
import stored
from mini import EVERY, GS1, PILOT, STEPS
from sessions import Session, assert_one_line, run, start_and_stop_at

# update 5 is applied on the service, checkpoint 4 is the last, record 5 is not written
AT = STEPS - 1
CHECKPOINT = AT - AT % EVERY
assert PILOT < CHECKPOINT < AT < STEPS


class Killed:
    """A run of the mini scale that stops for good in the middle of the GS1 arm."""

    def __init__(self, preflighted, folder: Path, plant: str, *arguments: str) -> None:
        self.scale, self.folder = preflighted.scale, folder
        self.runs = preflighted.copy(folder)
        self.session = start_and_stop_at(
            folder / "killed", f"{GS1}:{AT}", *arguments,
            scale=self.scale, runs=self.runs, plant=plant,
        )  # fmt: skip
        self.marker = folder / "killed.marker"

    def resume(self, *arguments: str) -> Session:
        """Run again, undisturbed."""
        return run(self.folder / "resumed", *arguments, scale=self.scale, runs=self.runs)


def assert_resumed(
    killed: Killed, undisturbed: Session, before: dict[int, tuple[int, int]]
) -> None:
    """It went on from the last checkpoint, and everything is as if nothing had happened."""
    session = killed.resume()
    after = stored.step_files(killed.runs, GS1)

    assert session.exit == undisturbed.exit, session.tail
    assert {step for step in before if after[step] == before[step]} == set(range(CHECKPOINT))
    assert stored.training(killed.runs) == stored.training(undisturbed.runs)
    assert stored.rows(killed.runs) == stored.rows(undisturbed.runs)
    assert session.verdict["sentence"] == undisturbed.verdict["sentence"]
    assert session.verdict["attempts"] == 2
    assert not list(killed.runs.rglob(".tmp-*"))
    session.end_of_processes()


@pytest.mark.parametrize(
    ("arguments", "group"), [((), True), (("-n", "2"), False)], ids=["group", "controller_of_2"]
)
def test_kill_of_pytest(arguments, group, preflighted, undisturbed, tmp_path):
    """After SIGKILL no process is left for long; the next run repeats only what has no checkpoint.

    The whole process group is killed, or only the process that the user started, with workers.
    """
    killed = Killed(preflighted, tmp_path, "pause", *arguments)

    killed.session.kill(group=group)

    killed.session.end_of_processes()
    assert not (tmp_path / "killed" / "verdict.json").exists()
    before = stored.step_files(killed.runs, GS1)
    assert set(before) == set(range(AT))
    assert_resumed(killed, undisturbed, before)


def test_kill_of_the_engine(preflighted, undisturbed, tmp_path):
    """The run ends soon, in one line that says that it will resume, and it does."""
    killed = Killed(preflighted, tmp_path, "mark")

    os.kill(killed.session.engine(), signal.SIGKILL)
    killed.marker.unlink()
    killed.session.wait(120)  # the SDK alone would go on for five minutes

    assert killed.session.exit == 1
    assert_one_line(killed.session, "BLOCKED by training: ServiceDied", "run again", "checkpoint")
    assert killed.session.verdict["verdict"] == "INVALID"
    killed.session.end_of_processes()
    assert_resumed(killed, undisturbed, stored.step_files(killed.runs, GS1))


def test_interrupt(preflighted, undisturbed, tmp_path):
    """Ctrl-C ends the run with exit 2 and no verdict; the next run resumes."""
    killed = Killed(preflighted, tmp_path, "pause")

    killed.session.signal_group(signal.SIGINT)
    killed.session.wait()

    assert killed.session.exit == 2
    assert "INTERNALERROR" not in killed.session.output
    assert killed.session.verdict["verdict"] is None
    killed.session.end_of_processes()
    assert_resumed(killed, undisturbed, stored.step_files(killed.runs, GS1))
