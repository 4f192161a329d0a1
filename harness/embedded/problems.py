"""Grade-school word problems in the GSM8K record format, generated from a seed.

A record is {"question": str, "answer": str}: lines of reasoning with calculator annotations
(`4*7=<<4*7=28>>28 dollars spent`) and a last line `#### N`. Test and train share no question and no
(family, numbers) pair, whatever the wording or the names.
"""

import errno
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from harness.embedded.families import FAMILIES, Family, Step
from harness.errors import StoreError, StoreFullError

DATA_SEED = 20_240
N_TRAIN = 7_473
N_TEST = 1_319

Record = dict[str, str]


@dataclass(frozen=True)
class Problem:
    """A word problem with its `family` name, its `numbers` and the `steps` that solve it."""

    family: str
    numbers: tuple[int, ...]
    question: str
    steps: tuple[Step, ...]

    @property
    def gold(self) -> int:
        """The final answer, 1..99."""
        return self.steps[-1].value

    def record(self) -> Record:
        """The problem as a GSM8K record."""
        lines = [
            f"{s.expression}=<<{s.expression}={s.value}>>{s.value} {s.unit}" for s in self.steps
        ]
        return {"question": self.question, "answer": "\n".join([*lines, f"#### {self.gold}"])}


@dataclass(frozen=True)
class Splits:
    """Train and test problems, in their fixed order."""

    train: tuple[Problem, ...]
    test: tuple[Problem, ...]

    def train_records(self) -> list[Record]:
        """GSM8K records of the train side."""
        return [problem.record() for problem in self.train]

    def test_records(self) -> list[Record]:
        """GSM8K records of the test side."""
        return [problem.record() for problem in self.test]


@lru_cache(maxsize=4)
def generate(seed: int = DATA_SEED, n_train: int = N_TRAIN, n_test: int = N_TEST) -> Splits:
    """Draw the two sides; the same arguments give the same problems on every machine.

    Families take turns, so their shares are equal within one problem. Numbers repeat inside a side
    (questions do not), never across the two.
    """
    rng = Random(seed)
    test = _draw_side(n_test, rng, taken=frozenset())
    train = _draw_side(n_train, rng, taken=frozenset((p.family, p.numbers) for p in test))
    return Splits(train=train, test=test)


def load_splits() -> tuple[list[Record], list[Record]]:
    """The registered 7,473 train and 1,319 test records."""
    splits = generate()
    return splits.train_records(), splits.test_records()


def data_sha256() -> str:
    """SHA-256 of train.jsonl followed by test.jsonl, as `write_splits` writes them."""
    return hashlib.sha256(b"".join(_files().values())).hexdigest()


def write_splits(directory: Path) -> tuple[Path, Path]:
    """Write train.jsonl and test.jsonl to `directory` and return their paths.

    Each file appears whole or not at all, and a file that is already right is left alone.

    Raises:
        StoreFullError: no space is left; nothing half-written stays behind.
        StoreError: the folder can't be written.
    """
    paths = []
    for name, content in _files().items():
        path = directory / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not (path.is_file() and path.read_bytes() == content):
                _publish(path, content)
        except OSError as error:
            kind = StoreFullError if error.errno == errno.ENOSPC else StoreError
            raise kind(
                f"can't write {path} ({len(content)} bytes): {error.strerror}; "
                "free space or name another folder"
            ) from error
        paths.append(path)
    return paths[0], paths[1]


def _publish(path: Path, content: bytes) -> None:
    """Write to a temporary neighbour, flush it to disk, then rename it over `path`."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _files() -> dict[str, bytes]:
    train, test = load_splits()
    return {"train.jsonl": _json_lines(train), "test.jsonl": _json_lines(test)}


def _json_lines(records: list[Record]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def _draw_side(
    count: int, rng: Random, taken: frozenset[tuple[str, tuple[int, ...]]]
) -> tuple[Problem, ...]:
    """`count` problems with distinct questions, families in turn, then shuffled."""
    problems: list[Problem] = []
    questions: set[str] = set()
    while len(problems) < count:
        problem = _draw_problem(FAMILIES[len(problems) % len(FAMILIES)], rng)
        if problem.question not in questions and (problem.family, problem.numbers) not in taken:
            questions.add(problem.question)
            problems.append(problem)
    rng.shuffle(problems)
    return tuple(problems)


def _draw_problem(family: Family, rng: Random) -> Problem:
    numbers = family.draw_numbers(rng)
    steps = family.solve(numbers)
    assert steps is not None, "draw_numbers returns solvable numbers only"
    return Problem(family.name, tuple(numbers.values()), family.ask(numbers, rng), steps)
