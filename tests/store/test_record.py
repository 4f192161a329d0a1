"""The record of a store: appended to, never rewritten, and any change of it shows."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from harness.errors import StoreError
from harness.store.record import FIRST, Record

WRITER = """
import sys
from pathlib import Path
from harness.store.record import Record
record, name = Record(Path(sys.argv[1])), sys.argv[2]
for number in range(100_000):
    record.append("started", name, {"run": f"{name}-{number}"})
    print(number, flush=True)
"""


def filled(root, count=5):
    """A record of so many lines."""
    record = Record(root)
    for number in range(count):
        record.append("started", "mine@embedded", {"run": f"run-{number}"})
    return record


def test_each_line_continues_the_one_before(tmp_path):
    """Numbered from 1, with the hash of the line before; the first continues nothing."""
    lines = filled(tmp_path).lines()
    stated = [json.loads(text) for text in (tmp_path / "record.jsonl").read_text().splitlines()]

    assert [line["n"] for line in stated] == [1, 2, 3, 4, 5]
    assert [line["before"] for line in stated] == [FIRST, *(line.sha256 for line in lines[:-1])]
    assert [line.facts["run"] for line in lines] == [f"run-{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("attack", "line"),
    [
        (lambda t: [t[0], t[1].replace("run-1", "run-9"), *t[2:]], "line 3 does not continue"),
        (lambda t: [t[0], *t[2:]], "line 2 is numbered 3"),
        (lambda t: [t[1], t[0], *t[2:]], "line 1 is numbered 2"),
        (lambda t: [t[0], t[0], *t[1:]], "line 2 is numbered 1"),
        (lambda t: [t[0], "{}", *t[2:]], "line 2 can't be read"),
        (lambda t: [*t[:2], t[2][:-5], *t[3:]], "line 3 can't be read"),
        (lambda t: [t[0].replace("mine", "your"), *t[1:]], "line 2 does not continue"),
    ],
    ids=["edited", "removed", "reordered", "doubled", "emptied", "cut", "renamed"],
)
def test_a_change_is_named(tmp_path, attack, line):
    """By the first line that does not fit, for readers and before anything is appended."""
    record = filled(tmp_path)
    path = tmp_path / "record.jsonl"
    path.write_text("\n".join(attack(path.read_text().splitlines())) + "\n")

    for use in (record.lines, lambda: record.append("started", "mine@embedded", {})):
        with pytest.raises(StoreError, match=line):
            use()


def test_what_a_killed_writer_left_was_never_a_line(tmp_path):
    """A line without its end is not read, and the next one takes its place."""
    record = filled(tmp_path, 2)
    with (tmp_path / "record.jsonl").open("ab") as file:
        file.write(b'{"n": 3, "at": "20')

    assert len(record.lines()) == 2
    assert len(record.append("started", "mine@embedded", {"run": "after"})) == 3
    assert record.lines()[-1].facts == {"run": "after"}


def test_a_fact_that_is_there_is_not_written_twice(tmp_path):
    """The condition is asked under the lock, about the lines that are then there."""
    record = filled(tmp_path)

    lines = record.append("started", "mine@embedded", {}, unless=lambda all_: len(all_) == 5)

    assert len(lines) == len(record.lines()) == 5


def test_two_writers_killed_at_random_moments_leave_a_whole_record(tmp_path):
    """kill -9, twelve times, of two processes at once: no line is lost, torn or doubled."""
    generator = random.Random(7)
    said = {}
    for kill in range(12):
        names = [f"writer-{kill}-{n}" for n in (0, 1)]
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path), name],
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in names
        ]
        for writer in writers:
            writer.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.05))
        for name, writer in zip(names, writers, strict=True):
            os.kill(writer.pid, signal.SIGKILL)
            # what it had said before is on the disk
            said[name] = len(writer.communicate()[0].splitlines()) + 1

    lines = Record(tmp_path).lines()

    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    for name, count in said.items():
        runs = [line.facts["run"] for line in lines if line.experiment == name]
        assert runs == [f"{name}-{n}" for n in range(len(runs))]
        # a line may be on the disk whose writer died before it said so
        assert len(runs) - count in (0, 1)
