import logging
import os
import time
from pathlib import Path

import numpy as np
import pytest

from harness.errors import RunError, StoreError
from harness.store import Entry, RunStore

KILLED_WHILE_PUBLISHING = """
entry = RunStore(Path(sys.argv[1])).entry("arm/a", {"a": 1})
first = len(entry.steps())
with entry.lock() as held, entry.attempt("run"):
    print("go", held, flush=True)
    for i in range(first, 10_000):
        entry.publish_step(i, {"step": i, "noise": os.urandom(50_000).hex()})
        entry.publish("metrics", {"steps": i + 1})
"""

KILLED_WITH_THE_LOCK = """
entry = RunStore(Path(sys.argv[1])).entry("arm/a", {"a": 1})
with entry.lock() as held:
    child = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(held, os.getpid(), child.pid, flush=True)
    kill_self()
"""


@pytest.fixture(name="entry")
def _entry(tmp_path: Path) -> Entry:
    return RunStore(tmp_path).entry("arm/gs1_seed0", {"registration": {"rate": 4e-05}})


def reported(caplog) -> list[str]:
    """What the harness logged: clients of earlier tests may still log too."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("harness")]


class TestRecords:
    def test_an_entry_writes_nothing_until_something_is_published(self, entry) -> None:
        """Asking for an entry and reading from it leaves no trace."""
        assert (entry.read("metrics"), entry.read_step(0), entry.steps()) == (None, None, [])
        assert (entry.is_complete, entry.summary(), entry.attempts()) == (False, None, [])
        assert not entry.folder.exists()

    def test_published_kinds_read_back(self, entry) -> None:
        """A kind reads back as it was, arrays to the bit, and publishing again replaces it."""
        log_probs = np.log(np.random.default_rng(0).random((3, 5)))
        entry.publish("rollouts", {"log_probs": log_probs, "ids": ["a", "b"]})
        entry.publish("metrics", {"reward": 0.1})
        entry.publish("metrics", {"reward": 0.2})

        assert entry.read("rollouts")["log_probs"].tobytes() == log_probs.tobytes()
        assert entry.read("metrics") == {"reward": 0.2}

    def test_a_step_is_never_counted_twice(self, entry) -> None:
        """Publishing a step again after a resume replaces its record; the list stays in order."""
        for step, value in [(10, "a"), (2, "b"), (1_000_000, "c"), (2, "d")]:
            entry.publish_step(step, value)

        assert entry.steps() == [2, 10, 1_000_000]
        assert entry.read_step(2) == "d"

    def test_nan_is_refused_and_the_old_record_stays(self, entry) -> None:
        """A NaN reward raises with entry, record and place, and nothing changes on disk."""
        entry.publish_step(3, {"rewards_P": [1.0]})
        with pytest.raises(StoreError, match=r"arm/gs1_seed0 step-000003.rewards_P\[1\] is nan"):
            entry.publish_step(3, {"rewards_P": [0.0, float("nan")]})

        assert entry.read_step(3) == {"rewards_P": [1.0]}

    @pytest.mark.parametrize("kind", ["", "complete", "step-000001", "../x", "A", "a b", "1a"])
    def test_odd_kinds_are_refused(self, entry, kind: str) -> None:
        """A kind that could meet another file's name raises in one line, for readers too."""
        for use in (lambda: entry.publish(kind, 1), lambda: entry.read(kind)):
            with pytest.raises(StoreError, match="record kind"):
                use()

    def test_negative_steps_are_refused(self, entry) -> None:
        """Steps count from 0."""
        with pytest.raises(StoreError, match="step -1 is below 0"):
            entry.publish_step(-1, {})

    def test_a_kill_at_any_instant_leaves_whole_records(
        self, tmp_path, entry, spawn, caplog
    ) -> None:
        """Killed six times while it publishes: no gap, no half record, and the work goes on."""
        entry = RunStore(tmp_path).entry("arm/a", {"a": 1})
        for round_number in range(6):
            process = spawn(KILLED_WHILE_PUBLISHING, tmp_path)
            assert process.stdout.readline() == "go True\n"
            before = len(entry.steps())
            while len(entry.steps()) < before + 1 + round_number:
                assert process.poll() is None
                time.sleep(0.001)
            process.kill()
            process.wait()

            steps = entry.steps()
            assert steps == list(range(len(steps)))
            assert [entry.read_step(step)["step"] for step in steps] == steps
            counted = (entry.read("metrics") or {"steps": 0})["steps"]
            assert counted in (len(steps), len(steps) - 1)
        assert reported(caplog) == []
        assert [attempt.status for attempt in entry.attempts()] == ["started"] * 6
        assert not entry.is_complete


class TestComplete:
    def test_finish_is_the_commit_point(self, entry) -> None:
        """An entry is complete from the moment it is finished, and keeps its summary."""
        entry.publish_step(0, {"reward": 1.0})
        assert not entry.is_complete
        entry.finish({"steps": 1})

        assert entry.is_complete
        assert entry.is_sound()
        assert entry.summary() == {"steps": 1}

    def test_a_lost_record_takes_the_completeness_with_it(self, entry) -> None:
        """An entry whose marker vouches for a record that is gone is not complete."""
        entry.publish_step(0, {"reward": 1.0})
        entry.publish("metrics", {})
        entry.finish()
        next(entry.folder.rglob("metrics.json.zst")).unlink()

        assert not entry.is_complete

    @pytest.mark.parametrize("name", ["step-000000.json.zst", "complete.json.zst"])
    def test_a_corrupt_record_is_found_before_it_is_used(self, entry, caplog, name: str) -> None:
        """Reading all of it finds the damage, says so once, and the entry has to be made again."""
        entry.publish_step(0, {"reward": 1.0})
        entry.finish()
        path = next(entry.folder.rglob(name))
        path.write_bytes(path.read_bytes()[:-1])
        with caplog.at_level(logging.WARNING):
            assert not entry.is_sound()

        assert not entry.is_complete
        assert len(reported(caplog)) == 1
        entry.publish_step(0, {"reward": 1.0})
        entry.finish()
        assert entry.is_sound()

    def test_clear_forgets_records_and_keeps_attempts(self, entry) -> None:
        """After a clear the entry is empty and can be filled again; its history stays."""
        with entry.lock(), entry.attempt("run"):
            entry.publish_step(7, "old")
            entry.progress({"step": 7})
            entry.finish()
            entry.clear()
            entry.clear()
        assert (entry.steps(), entry.is_complete, entry.read_progress()) == ([], False, None)
        assert len(entry.attempts()) == 1

        entry.publish_step(0, "new")
        assert entry.steps() == [0]
        assert sorted(p.name for p in entry.folder.iterdir()) == [
            "attempts",
            "key.json",
            "lock",
            "records",
        ]


class TestAttempts:
    def test_each_start_is_kept_with_how_it_ended(self, entry) -> None:
        """Finished, failed with its message, interrupted: three attempts, three ways to end."""
        with entry.attempt("run-1", {"resumed_from": 0}) as attempt:
            assert entry.attempts() == [attempt]
        with pytest.raises(RunError), entry.attempt("run-1"):
            raise RunError("reward is nan at step 3")
        with pytest.raises(KeyboardInterrupt), entry.attempt("run-2"):
            raise KeyboardInterrupt

        finished, failed, interrupted = entry.attempts()
        assert [a.number for a in entry.attempts()] == [1, 2, 3]
        assert (finished.status, finished.run, finished.pid) == ("finished", "run-1", os.getpid())
        assert finished.info == {"resumed_from": 0}
        assert finished.started_at <= finished.ended_at
        assert (failed.status, failed.error_type) == ("failed", "RunError")
        assert failed.error == "reward is nan at step 3"
        assert (interrupted.status, interrupted.ended_at) == ("started", None)

    def test_info_holds_no_secret(self, entry) -> None:
        """What is noted about a start is on disk in clear text, so a key in it is refused."""
        with pytest.raises(StoreError, match="api_key"), entry.attempt("run", {"api_key": "tml-1"}):
            raise AssertionError("must not start")

        assert entry.attempts() == []


class TestLock:
    def test_one_holder_at_a_time(self, entry) -> None:
        """While it is held a second try yields False at once; afterwards it is free again."""
        with entry.lock() as first, entry.lock() as second:
            assert (first, second) == (True, False)
        with entry.lock(block=True) as third:
            assert third

    def test_is_free_after_an_error(self, entry) -> None:
        """An exception inside releases it."""
        with pytest.raises(RunError), entry.lock():
            raise RunError("x")
        with entry.lock() as held:
            assert held

    def test_a_dead_holders_lock_is_free(self, tmp_path, spawn) -> None:
        """Killed with the lock in hand and a child still running: it is had within 5 s."""
        process = spawn(KILLED_WITH_THE_LOCK, tmp_path)
        held, pid, child = process.stdout.readline().split()
        try:
            assert (held, process.wait(60)) == ("True", -9)
            entry = RunStore(tmp_path).entry("arm/a", {"a": 1})
            assert (entry.folder / "lock").exists()
            with entry.lock() as free:
                assert free, f"still held by dead {pid}"
        finally:
            os.kill(int(child), 9)


class TestProgress:
    def test_is_replaced_and_read(self, entry) -> None:
        """Readers see the last line, or None before the first."""
        assert entry.read_progress() is None
        entry.progress({"step": 1, "reward": 0.5})
        entry.progress({"step": 2, "reward": 0.25})

        assert entry.read_progress() == {"step": 2, "reward": 0.25}

    def test_refuses_nan_as_records_do(self, entry) -> None:
        """A NaN is an error where it is born, on the live line too."""
        with pytest.raises(StoreError, match=r"progress.reward is nan"):
            entry.progress({"reward": float("nan")})
