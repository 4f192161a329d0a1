"""A run that is ended at the worst moment goes on from its checkpoint to the same results."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import stored
from mini import EVERY, GS1, PILOT, STEPS
from planted import AT as MOMENT
from planted import PLANT
from sessions import Session, assert_one_line, start_and_stop_at

# update 5 is applied on the service, checkpoint 4 is the last, record 5 is not written
AT = STEPS - 1
CHECKPOINT = AT - AT % EVERY
assert PILOT < CHECKPOINT < AT < STEPS


class Interrupted:
    """A run of the mini scale that is ended again and again in the middle of the GS1 arm."""

    def __init__(self, preflighted, folder: Path) -> None:
        self.ready, self.folder = preflighted, folder
        self.runs = preflighted.copy(folder)
        self.before: dict[int, tuple[int, int]] = {}

    def stopped(self, name: str, plant: str, *arguments: str) -> Session:
        """A session that has come to the moment, and stands still there."""
        return start_and_stop_at(
            self.folder / name, f"{GS1}:{AT}", *arguments,
            scale=self.ready.scale, runs=self.runs, plant=plant,
        )  # fmt: skip

    def ended(self, session: Session) -> None:
        """No process is left; what was finished is there, what has a checkpoint as it was."""
        session.end_of_processes()
        after = stored.step_files(self.runs, GS1)
        assert set(after) == set(range(AT))
        if self.before:
            self.assert_kept(after)
        self.before = after

    def assert_kept(self, after: dict[int, tuple[int, int]]) -> None:
        """Only steps behind the last checkpoint were taken again."""
        kept = {step for step in self.before if after[step] == self.before[step]}
        assert kept == set(range(CHECKPOINT))


def kill_of_the_group(run: Interrupted) -> None:
    """SIGKILL to pytest and all that it started."""
    session = run.stopped("group", "pause")
    session.kill(group=True)
    run.ended(session)
    assert not (session.folder / "verdict.json").exists()


def kill_of_the_controller(run: Interrupted) -> None:
    """SIGKILL to the process that the user started, which has two workers."""
    session = run.stopped("controller", "pause", "-n", "2")
    session.kill(group=False)
    run.ended(session)
    assert not (session.folder / "verdict.json").exists()


def kill_of_the_engine(run: Interrupted) -> None:
    """The run ends soon, in one line that says that it will resume."""
    session = run.stopped("engine", "mark")
    os.kill(session.engine(), signal.SIGKILL)
    session.folder.with_name("engine.marker").unlink()
    session.wait(120)  # the SDK alone would go on for five minutes
    assert session.exit == 1
    assert_one_line(session, "BLOCKED by training: ServiceDied", "run again", "checkpoint")
    assert session.verdict["verdict"] == "INVALID"
    run.ended(session)


def ctrl_c(run: Interrupted) -> None:
    """Exit 2, and no verdict."""
    session = run.stopped("ctrl_c", "pause")
    session.signal_group(signal.SIGINT)
    session.wait()
    assert session.exit == 2
    assert "INTERNALERROR" not in session.output
    assert session.verdict["verdict"] is None
    run.ended(session)


def full_disk(run: Interrupted) -> None:
    """No record is half-written, and one line says that with room again the run resumes."""
    session = run.ready.run(
        run.folder / "disk", "-p", "planted", runs=run.runs,
        environ={PLANT: "full_disk", MOMENT: f"{GS1}:{AT}"},
    )  # fmt: skip
    assert_one_line(session, "StoreFullError", "run again: it resumes")
    assert session.exit == 1
    assert session.verdict["verdict"] == "INVALID"
    run.ended(session)


# the controller first: its two workers train both arms
ENDS: tuple[Callable[[Interrupted], None], ...] = (
    kill_of_the_controller, kill_of_the_group, kill_of_the_engine, ctrl_c, full_disk,
)  # fmt: skip


def test_a_run_that_is_ended_in_every_way_ends_as_if_nothing_had_happened(
    preflighted, undisturbed, tmp_path
):
    """No process outlives an end; each run repeats only what has no checkpoint; all is the same."""
    run = Interrupted(preflighted, tmp_path)
    for end in ENDS:
        end(run)

    session = preflighted.run(tmp_path / "resumed", runs=run.runs)

    assert session.exit == undisturbed.exit, session.tail
    run.assert_kept(stored.step_files(run.runs, GS1))
    assert stored.training(run.runs) == stored.training(undisturbed.runs)
    assert stored.rows(run.runs) == stored.rows(undisturbed.runs)
    assert session.verdict["sentence"] == undisturbed.verdict["sentence"]
    assert session.verdict["attempts"] == len(ENDS) + 1
    assert not list(run.runs.rglob(".tmp-*"))
    session.end_of_processes()
