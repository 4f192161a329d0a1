"""Regular expressions over chunks, under limits of time: a pattern comes from a policy.

Only chunks that hold a literal word of the pattern are looked at, best BM25 match first. The
standard library's `re` can't be stopped, hence the `regex` package.
"""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import regex

T = TypeVar("T")

MAX_PATTERN_CHARS = 160
MAX_LITERAL_WORDS = 8
CANDIDATES = 5_000

_BETWEEN_WORDS = re.compile(r"\\[sSbBWDAZntrf]|\\[^\w]", re.DOTALL)
_GROUP_HEAD = re.compile(r"\(\?(?:P?<\w*>|[^:)]*:)?")
# what stands for a letter that the pattern leaves open, so that no whole word is known there
_OPEN = re.compile(r"\\(?:[pP]\{[^}]*\}|.)|\[[^\]]*\]|\w(?:[?*]|\{[^}]*\})", re.DOTALL)
_COUNT = re.compile(r"\{[^}]*\}")
_WORD = re.compile(r"\w{2,}")


class PatternRefused(ValueError):
    """The pattern is too long, does not compile, holds no literal word, or takes too long."""


@dataclass(frozen=True)
class TimeLimits:
    """Seconds of computing that a pattern may take in one chunk, and in all of them.

    Time in which the machine does something else is not the pattern's: a result that depends on
    load would make rollouts depend on it.
    """

    chunk: float = 0.05
    total: float = 2.0


def literal_words(pattern: str) -> list[str]:
    """Up to 8 whole words that stand in the pattern as they are, longest first.

    `20\\d\\d` and `[Tt]acoma` hold none, since the index knows whole words only.
    """
    rest = _BETWEEN_WORDS.sub(" ", pattern)
    rest = _GROUP_HEAD.sub(" ", rest)
    rest = _COUNT.sub(" ", _OPEN.sub("_", rest))
    words = dict.fromkeys(w.casefold() for w in _WORD.findall(rest) if "_" not in w)
    return sorted(words, key=lambda word: (-len(word), word))[:MAX_LITERAL_WORDS]


def compiled(pattern: str, case_sensitive: bool) -> "regex.Pattern[str]":
    """The pattern, ready to search with.

    Raises:
        PatternRefused: it is empty, longer than 160 characters, or not a regular expression.
    """
    if not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        raise PatternRefused(f"pattern of {len(pattern)} characters; use 1 to {MAX_PATTERN_CHARS}")
    flags = regex.VERSION0 if case_sensitive else regex.VERSION0 | regex.IGNORECASE
    try:
        return regex.compile(pattern, flags)
    # the compiler fails in many ways on hostile patterns, and each means the same
    except (regex.error, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise PatternRefused(f"not a regular expression: {str(error)[:120]}") from None


def matches(
    pattern: "regex.Pattern[str]", texts: Iterable[tuple[T, str]], limits: TimeLimits
) -> Iterator[tuple[T, tuple[int, int]]]:
    """What each matching text belongs to, and the span of its first match.

    Raises:
        PatternRefused: a limit of time was passed.
    """
    deadline = time.thread_time() + limits.total
    for owner, text in texts:
        left = deadline - time.thread_time()
        if left <= 0:
            raise PatternRefused(f"took over {limits.total} s in all; use a more telling pattern")
        try:
            found = pattern.search(text, timeout=min(limits.chunk, left), concurrent=True)
        except TimeoutError:
            raise PatternRefused(
                f"took over {limits.chunk} s in one chunk; use a simpler pattern"
            ) from None
        if found:
            yield owner, found.span()
