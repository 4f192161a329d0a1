"""What a data set is worth as evidence: overlap of its splits, and labels that hold.

A label error is a gold answer that is not a number, or that is not among the numbers of the last
line of its own worked solution which holds any. Everything that a careful reader would still
accept is a note: cents where the solution counts dollars, a calculator annotation that was rounded
or can't be read.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from harness.errors import DataError
from harness.tasks.arithmetic import ArithmeticSyntax, evaluate
from harness.tasks.grading import all_numbers
from harness.tasks.gsm8k import Problem
from harness.tasks.task import Item

NGRAM = 13

_WORD = re.compile(r"[^\W_]+")
_ANNOTATION = re.compile(r"<<(.*?)>>", re.DOTALL)
_SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_IN_WORDS = {word: value for value, word in enumerate(_SMALL)}
_SPACED_THOUSANDS = re.compile(r"(?<=[0-9]) (?=[0-9]{3}(?![0-9]))")


@dataclass(frozen=True)
class Finding:
    """Something about one problem, and why it was noticed."""

    id: str
    reason: str


@dataclass(frozen=True)
class LabelAudit:
    """Labels of `n_checked` problems. `errors` count against the card's bound, `notes` do not.

    `annotations` counts the `<<expression=value>>` marks that were read.
    """

    n_checked: int
    annotations: int
    errors: tuple[Finding, ...]
    notes: tuple[Finding, ...]


@dataclass(frozen=True)
class NgramOverlap:
    """Test problems that share a run of `n` words with a train problem.

    Problems with fewer than `n` words have no such run: `too_short` counts them.
    """

    n: int
    shared_ids: tuple[str, ...]
    too_short: int
    n_test: int

    @property
    def share(self) -> float:
        """Share of all test problems that overlap."""
        return len(self.shared_ids) / self.n_test


def overlap(train: Sequence[Item], test: Sequence[Item]) -> list[tuple[str, str]]:
    """(test id, train id) of every test question that is also a train question.

    Questions are compared as their words: case, punctuation and white space do not count.
    """
    first_id: dict[tuple[str, ...], str] = {}
    for problem in train:
        first_id.setdefault(words(problem.question), problem.id)
    texts = ((problem.id, words(problem.question)) for problem in test)
    return [(test_id, first_id[text]) for test_id, text in texts if text in first_id]


def ngram_overlap(train: Sequence[Item], test: Sequence[Item], n: int = NGRAM) -> NgramOverlap:
    """Test questions that share a run of n words with any train question.

    Source: the 13-gram rule of Brown et al. 2020, arXiv 2005.14165, appendix C.

    Raises:
        DataError: there is no test problem.
    """
    if not test:
        raise DataError("0 test problems; an overlap needs at least 1; load the test split")
    seen = {gram for problem in train for gram in _ngrams(words(problem.question), n)}
    texts = [(problem.id, words(problem.question)) for problem in test]
    shared = tuple(test_id for test_id, text in texts if not seen.isdisjoint(_ngrams(text, n)))
    too_short = sum(len(text) < n for _, text in texts)
    return NgramOverlap(n=n, shared_ids=shared, too_short=too_short, n_test=len(test))


def label_audit(problems: Sequence[Problem], sample_size: int | None, seed: int) -> LabelAudit:
    """Check the labels of a random sample, or of all problems if `sample_size` is None.

    Args:
        problems: the problems to draw from.
        sample_size: how many to draw without replacement.
        seed: of the draw.

    Raises:
        DataError: there are fewer problems than the sample needs.
    """
    chosen = problems if sample_size is None else _sample(problems, sample_size, seed)
    errors = [Finding(p.id, reason) for p in chosen if (reason := label_error(p)) is not None]
    failed = {finding.id for finding in errors}
    notes = [
        Finding(p.id, reason)
        for p in chosen
        for reason in ([] if p.id in failed else _label_notes(p)) + annotation_notes(p)
    ]
    return LabelAudit(
        n_checked=len(chosen),
        annotations=sum(len(_ANNOTATION.findall(p.solution)) for p in chosen),
        errors=tuple(errors),
        notes=tuple(notes),
    )


def label_error(problem: Problem) -> str | None:
    """Why the gold answer can't be right by its own solution, or None."""
    try:
        gold = problem.gold_value
    except (ValueError, ZeroDivisionError):
        return f"gold answer {problem.gold!r} is not a number"
    stated = _concluding_numbers(problem)
    if not stated:
        return "no line of the solution holds a number"
    # a solution in dollars may be asked for cents
    if gold in stated or gold / 100 in stated:
        return None
    return f"gold {problem.gold}, but the solution concludes with {_shown(stated)}"


def annotation_notes(problem: Problem) -> list[str]:
    """What is odd about the problem's `<<expression=value>>` marks: unreadable, rounded, wrong."""
    notes = []
    for annotation in _ANNOTATION.findall(problem.solution):
        expression, _, stated = annotation.rpartition("=")
        try:
            error = abs(evaluate(expression) - evaluate(stated))
        except ArithmeticSyntax as problem_found:
            notes.append(f"<<{annotation}>> can't be read: {problem_found}")
            continue
        # rounded or cut off: less than one unit of the last decimal that is written
        unit = Fraction(1, 10 ** len(stated.strip().partition(".")[2]))
        if error >= unit:
            notes.append(f"<<{annotation}>> is wrong by {float(error):.6g}")
        elif error:
            notes.append(f"<<{annotation}>> is rounded")
    return notes


def words(text: str) -> tuple[str, ...]:
    """The words and numbers of a text, in order, in one case and one Unicode form."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _label_notes(problem: Problem) -> list[str]:
    """What a careful reader would still accept about a gold answer without a label error."""
    if problem.gold_value in _concluding_numbers(problem):
        return []
    return [f"gold {problem.gold} is a hundred times the number that the solution concludes with"]


def _concluding_numbers(problem: Problem) -> list[Fraction]:
    """The numbers of the last line that holds any, annotations and the `####` line left out.

    Also read: small numbers in words, and blanks between thousands ("17 000").
    """
    reasoning = _ANNOTATION.sub("", problem.solution.rpartition("####")[0])
    for line in reversed(reasoning.splitlines()):
        numbers = all_numbers(line)
        if numbers:
            joined = all_numbers(_SPACED_THOUSANDS.sub("", line))
            in_words = [Fraction(_IN_WORDS[word]) for word in words(line) if word in _IN_WORDS]
            return [*in_words, *joined, *numbers]
    return []


def _shown(numbers: Sequence[Fraction]) -> str:
    value = numbers[-1]
    return str(value) if value.denominator == 1 else f"{float(value):g}"


def _ngrams(text: tuple[str, ...], n: int) -> set[tuple[str, ...]]:
    return {text[start : start + n] for start in range(len(text) - n + 1)}


def _sample(problems: Sequence[Problem], size: int, seed: int) -> list[Problem]:
    if size > len(problems):
        raise DataError(
            f"{len(problems)} problems, but the label audit samples {size}; load more, or lower "
            "min_sample_size"
        )
    drawn = np.random.default_rng(seed).choice(len(problems), size=size, replace=False)
    return [problems[index] for index in sorted(drawn.tolist())]
