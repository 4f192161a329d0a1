import threading
import time

import pytest

from harness.errors import BudgetExceeded, RunError, StoreError
from harness.store import Entry, RunStore, produce_all

WORKER = """
store, run = RunStore(Path(sys.argv[1])), sys.argv[2]
entries = [store.entry(f"arm/{name}", {"arm": name}) for name in sys.argv[3].split(",")]
STARTED = Path(sys.argv[1]) / "started"
STARTED.mkdir(exist_ok=True)

def say(*words):
    print(*words, flush=True)
"""

BOTH_AT_ONCE = (
    WORKER
    + """
def produce(entry):
    say("produces", entry.name)
    (STARTED / entry.name.replace("/", "-")).touch()
    wait_for(lambda: len(list(STARTED.iterdir())) == len(entries), "the other worker to start")
    entry.finish(os.getpid())

produce_all(entries, produce, run=run, poll=0.02)
say("done", *(entry.is_complete for entry in entries))
"""
)

DIES_AT_STEP_3 = (
    WORKER
    + """
def produce(entry):
    for step in range(len(entry.steps()), 6):
        say("trains", step)
        entry.publish_step(step, {"by": os.getpid()})
        if step == 2 and not (STARTED / "died").exists():
            wait_for((STARTED / "waiter").exists, "a worker that waits")
            (STARTED / "died").touch()
            kill_self()
    entry.finish()

if entries[0].attempts():
    say("waits")
    (STARTED / "waiter").touch()
produce_all(entries, produce, run=run, poll=0.02)
"""
)


@pytest.fixture(name="entries")
def _entries(tmp_path) -> list[Entry]:
    store = RunStore(tmp_path)
    return [store.entry(f"arm/{name}", {"arm": name}) for name in "ab"]


def finish(entry: Entry) -> None:
    """Produce an entry in no time."""
    entry.publish_step(len(entry.steps()), {})
    entry.finish()


def never(entry: Entry) -> None:
    """Fail if anything is produced."""
    raise AssertionError(f"{entry.name} was produced again")


class TestProcesses:
    def test_two_workers_produce_two_entries_at_the_same_time(
        self, tmp_path, entries, spawn, lines_of
    ) -> None:
        """Each entry is produced once, by a worker of its own: both run before either may end."""
        workers = [spawn(BOTH_AT_ONCE, tmp_path, "run", "a,b") for _ in range(2)]
        lines = [lines_of(worker) for worker in workers]

        assert sorted(worker[0] for worker in lines) == ["produces arm/a", "produces arm/b"]
        assert [worker[1:] for worker in lines] == [["done True True"]] * 2
        assert {entry.summary() for entry in entries} == {worker.pid for worker in workers}
        assert [len(entry.attempts()) for entry in entries] == [1, 1]

    def test_three_workers_and_two_sessions_train_one_arm_once(
        self, tmp_path, entries, spawn, lines_of
    ) -> None:
        """However many workers of however many runs want an arm, it is trained once."""
        runs = ["one", "one", "one", "two", "two"]
        lines = [lines_of(w) for w in [spawn(BOTH_AT_ONCE, tmp_path, run, "a") for run in runs]]

        assert sum(worker.count("produces arm/a") for worker in lines) == 1
        assert [worker[-1] for worker in lines] == ["done True"] * 5
        assert len(entries[0].attempts()) == 1

    def test_a_dead_workers_entry_is_taken_over(self, tmp_path, entries, spawn, lines_of) -> None:
        """Killed in the middle of an arm: the worker that waits goes on at the next step."""
        first = spawn(DIES_AT_STEP_3, tmp_path, "run", "a")
        assert first.stdout.readline() == "trains 0\n"
        second = spawn(DIES_AT_STEP_3, tmp_path, "run", "a")

        assert lines_of(first, code=-9) == ["trains 1", "trains 2"]
        assert lines_of(second) == ["waits", "trains 3", "trains 4", "trains 5"]
        by = [entries[0].read_step(step)["by"] for step in entries[0].steps()]
        assert by == [first.pid] * 3 + [second.pid] * 3
        assert [attempt.status for attempt in entries[0].attempts()] == ["started", "finished"]

    def test_an_arm_finished_before_the_crash_is_kept(
        self, tmp_path, entries, spawn, lines_of
    ) -> None:
        """A worker that dies after an arm was finished loses only what it had not finished."""
        finish(entries[0])
        first = spawn(DIES_AT_STEP_3, tmp_path, "run", "a,b")
        (tmp_path / "started").mkdir(exist_ok=True)
        (tmp_path / "started" / "waiter").touch()
        assert lines_of(first, code=-9) == ["trains 0", "trains 1", "trains 2"]
        produced: list[str] = []
        produce_all(entries, lambda e: (produced.append(e.name), finish(e)), run="run")

        assert produced == ["arm/b"]
        assert entries[1].steps() == [0, 1, 2, 3]


class TestProduceAll:
    def test_an_unchanged_rerun_produces_nothing(self, entries) -> None:
        """What is complete stays as it is, and is not even counted as tried."""
        produce_all(entries, finish, run="one")
        produce_all(entries, never, run="two")

        assert [len(entry.attempts()) for entry in entries] == [1, 1]

    def test_a_corrupt_record_is_produced_again(self, entries, caplog) -> None:
        """Damage is found before a complete entry is used, and healed in the same run."""
        produce_all(entries, finish, run="one")
        next(entries[0].folder.rglob("step-*")).write_bytes(b"\0" * 100)
        produce_all(entries, finish, run="two")

        assert [len(entry.attempts()) for entry in entries] == [2, 1]
        assert entries[0].read_step(0) == {}
        assert "is corrupt" in caplog.text

    def test_it_waits_for_the_holder(self, entries) -> None:
        """An entry held by another is waited for, and taken as it is when the holder is done."""
        held = threading.Event()

        def other() -> None:
            with entries[0].lock(), entries[0].attempt("run"):
                held.set()
                time.sleep(0.2)
                finish(entries[0])

        thread = threading.Thread(target=other)
        thread.start()
        assert held.wait(60)
        produce_all(entries[:1], never, run="run", poll=0.02)
        thread.join()

        assert len(entries[0].attempts()) == 1

    def test_a_failure_is_not_repeated_in_its_run(self, entries) -> None:
        """Other workers of the run get the same kind of error at once; the next run tries anew."""

        def fail(entry: Entry) -> None:
            entry.publish_step(0, {})
            raise BudgetExceeded("wall time 3601 s > 3600 s")

        with pytest.raises(BudgetExceeded, match=r"^wall time"):
            produce_all(entries[:1], fail, run="one")
        with pytest.raises(BudgetExceeded, match="arm/a: wall time 3601 s > 3600 s"):
            produce_all(entries[:1], never, run="one")
        produce_all(entries[:1], finish, run="two")

        assert entries[0].steps() == [0, 1]
        assert [attempt.status for attempt in entries[0].attempts()] == ["failed", "finished"]

    def test_a_bug_reaches_the_others_as_a_run_error(self, entries) -> None:
        """An exception from outside the harness keeps its name in the message."""

        def fail(_entry: Entry) -> None:
            raise ZeroDivisionError("division by zero")

        with pytest.raises(ZeroDivisionError):
            produce_all(entries, fail, run="one")
        with pytest.raises(RunError, match="arm/a: ZeroDivisionError: division by zero"):
            produce_all(entries, never, run="one")

    def test_an_interrupt_is_no_failure(self, entries) -> None:
        """After Ctrl-C the entry can be resumed, and its lock is free."""

        def interrupt(_entry: Entry) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            produce_all(entries, interrupt, run="one")
        produce_all(entries, finish, run="one")

        assert [a.status for a in entries[0].attempts()] == ["started", "finished"]

    def test_a_producer_that_finishes_nothing_is_told_so(self, entries) -> None:
        """Returning without the commit point is an error, never an endless loop."""
        with pytest.raises(StoreError, match="arm/a was produced but is not done"):
            produce_all(entries, lambda entry: entry.publish("metrics", 1), run="one")

    def test_it_looks_again_once_it_has_the_lock(self, entries) -> None:
        """An entry finished by another between the look and the lock is not produced again."""

        def done(entry: Entry) -> bool:
            was_complete = entry.is_complete
            if not was_complete:
                finish(entry)  # as another worker would, just after this one looked
            return was_complete

        produce_all(entries[:1], never, run="one", done=done)

        assert entries[0].attempts() == []

    @pytest.mark.parametrize("retrain", [False, True])
    def test_a_stage_can_be_done_before_the_entry_is_complete(self, entries, retrain: bool) -> None:
        """The pilot is done when its steps are there; the arm goes on from them."""
        trained: list[int] = []

        def train_to(last: int) -> None:
            def produce(entry: Entry) -> None:
                for step in range(len(entry.steps()), last):
                    trained.append(step)
                    entry.publish_step(step, {})

            def done(entry: Entry) -> bool:
                return len(entry.steps()) >= last

            produce_all(entries[:1], produce, run="one", done=done, retrain=retrain)

        train_to(2)
        assert trained == [0, 1]
        train_to(5)
        assert trained == [0, 1, 2, 3, 4]

    def test_retrain_clears_once_a_run(self, entries) -> None:
        """Earlier records go, those of this run stay, whichever worker and stage asks again."""
        produce_all(entries, finish, run="one")
        for entry in entries:
            entry.publish_step(99, "left over")
        produce_all(entries, finish, run="two", retrain=True)
        produce_all(entries, never, run="two", retrain=True)

        assert [entry.steps() for entry in entries] == [[0], [0]]
        assert [len(entry.attempts()) for entry in entries] == [2, 2]
