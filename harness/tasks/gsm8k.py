"""GSM8K and data sets in its format: problems with a worked solution and a number as the answer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

from harness.cards.card import Card
from harness.tasks.records import data_sha256, read_records, refuse

FILES = {"train": "train.jsonl", "test": "test.jsonl"}

_PLAIN_NUMBER = re.compile(r"-?(?:[0-9]{1,50}(?:\.[0-9]{1,50})?|\.[0-9]{1,50})")


@dataclass(frozen=True)
class Problem:
    """One word problem.

    `id` is the split and the position in its file ("test/00017"). `solution` is the record's
    whole answer text, its last line included. `gold` is the final number as text, without
    thousands separators, as the cookbook's environment takes it.
    """

    id: str
    question: str
    solution: str
    gold: str

    @property
    def gold_value(self) -> Fraction:
        """The gold answer as an exact number."""
        return Fraction(self.gold)


@dataclass(frozen=True)
class Task:
    """What a card trains and evaluates on, in file order. `sha256s` has the keys train and test."""

    train: tuple[Problem, ...]
    test: tuple[Problem, ...]
    sha256s: Mapping[str, str]

    headline: ClassVar = "pass@1"

    @property
    def origin(self) -> None:
        """Nothing: the pinned hashes of both files say where they come from."""


def load_task(directory: Path, card: Card) -> Task:
    """Both splits as the card counts them, from `train.jsonl` and `test.jsonl`.

    Of a longer file the first `dataset.n_examples` and `eval.n_examples` records are taken.

    Raises:
        DataError: a file is missing, truncated or malformed.
    """
    counts = {"train": card.dataset.n_examples, "test": card.eval.n_examples}
    splits = {
        split: tuple(load_split(directory / FILES[split], split, count)[:count])
        for split, count in counts.items()
    }
    sha256s = {split: data_sha256(directory / name) for split, name in FILES.items()}
    return Task(splits["train"], splits["test"], sha256s)


def load_split(path: Path, split: str, expected: int) -> list[Problem]:
    """Every problem of a file, in its order, with ids `<split>/<index>`, index from 00000.

    Args:
        path: a file in the GSM8K record format, JSON lines of {"question", "answer"}.
        split: the first part of the ids.
        expected: the least number of records that the file must hold.

    Raises:
        DataError: the file is missing, empty or truncated, a record has other keys, or a gold
            answer is not a number.
    """
    problems = []
    complaints = []
    for index, record in enumerate(read_records(path, expected)):
        gold = gold_text(record["answer"])
        if gold is None or not _PLAIN_NUMBER.fullmatch(gold):
            shown = "missing" if gold is None else repr(gold[:40])
            complaints.append(
                f"{path.name}: line {index + 1} has the gold answer {shown}; the last line of an "
                "answer must read '#### N' with a plain number N"
            )
        else:
            problem_id = f"{split}/{index:05d}"
            problems.append(Problem(problem_id, record["question"], record["answer"], gold))
    refuse(complaints)
    return problems


def gold_text(answer: str) -> str | None:
    """What follows the last `####`, commas and blanks stripped; None without that mark."""
    _, mark, after = answer.rpartition("####")
    return after.replace(",", "").strip() if mark else None
