"""Regular expressions over chunks, in bounded work: a pattern comes from a policy.

Only chunks that hold a literal word of the pattern are looked at, best BM25 match first. RE2 takes
time linear in a text, whatever the pattern. Work is counted, never timed: what a rollout is
answered depends on corpus and pattern alone, and not on the load of the machine.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import re2  # type: ignore[import-untyped]  # the package has no annotations

T = TypeVar("T")

MAX_PATTERN_CHARS = 160
MAX_LITERAL_WORDS = 8
CANDIDATES = 5_000

WORK = 1_000_000_000
"""Characters times instructions: all 5,000 chunks of 2,000 characters for 100 instructions, which
is more than words, classes and repeats take; 700 chunks for a gap such as `.{0,80}`. That is some
10 ms of computing for most patterns, and up to 9 s, measured, where one explodes."""

MEMORY = 2**21
"""Bytes of one compiled pattern; RE2's package keeps 128 of them."""

_BETWEEN_WORDS = re.compile(r"\\[sSbBWDAZntrf]|\\[^\w]", re.DOTALL)
_GROUP_HEAD = re.compile(r"\(\?(?:P?<\w*>|[^:)]*:)?")
# what stands for a letter that the pattern leaves open, so that no whole word is known there
_OPEN = re.compile(r"\\(?:[pP]\{[^}]*\}|.)|\[[^\]]*\]|\w(?:[?*]|\{[^}]*\})", re.DOTALL)
_COUNT = re.compile(r"\{[^}]*\}")
_WORD = re.compile(r"\w{2,}")


class PatternRefused(ValueError):
    """The pattern is too long, does not compile, holds no literal word, or takes too much work."""


@dataclass(frozen=True)
class Expression:
    """A pattern in RE2's syntax, ready to search with."""

    _compiled: re2._Regexp

    @property
    def instructions(self) -> int:
        """The size of its program: the most that one character of a text can take."""
        size: int = self._compiled.programsize
        return size

    def first(self, text: str) -> tuple[int, int] | None:
        """The span of its first match, in characters."""
        found = self._compiled.search(text)
        if found is None:
            return None
        span: tuple[int, int] = found.span()
        return span


def literal_words(pattern: str) -> list[str]:
    """Up to 8 whole words that stand in the pattern as they are, longest first.

    `20\\d\\d` and `[Tt]acoma` hold none, since the index knows whole words only.
    """
    rest = _BETWEEN_WORDS.sub(" ", pattern)
    rest = _GROUP_HEAD.sub(" ", rest)
    rest = _COUNT.sub(" ", _OPEN.sub("_", rest))
    words = dict.fromkeys(w.casefold() for w in _WORD.findall(rest) if "_" not in w)
    return sorted(words, key=lambda word: (-len(word), word))[:MAX_LITERAL_WORDS]


def compiled(pattern: str, case_sensitive: bool) -> Expression:
    """The pattern, ready to search with.

    Raises:
        PatternRefused: it is empty, longer than 160 characters, or nothing that RE2 can compile.
    """
    if not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
        raise PatternRefused(f"pattern of {len(pattern)} characters; use 1 to {MAX_PATTERN_CHARS}")
    options = re2.Options()
    options.case_sensitive, options.max_mem = case_sensitive, MEMORY
    options.never_capture, options.log_errors = True, False
    try:
        return Expression(re2.compile(pattern, options))
    except UnicodeEncodeError:
        raise PatternRefused("not a regular expression: half a surrogate pair") from None
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        raise PatternRefused(f"not a regular expression of RE2: {reason[:120]}") from None


def matches(
    expression: Expression, texts: Iterable[tuple[T, str]], work: int = WORK
) -> Iterator[tuple[T, tuple[int, int]]]:
    """What each matching text belongs to, and the span of its first match.

    Raises:
        PatternRefused: the characters that were looked at, times the instructions of the
            expression, are more than `work`.
    """
    size, left = expression.instructions, work
    for owner, text in texts:
        left -= size * len(text)
        if left < 0:
            raise PatternRefused(
                f"{size} instructions a character take over {work} in all; use a simpler or a "
                "more telling pattern"
            )
        span = expression.first(text)
        if span is not None:
            yield owner, span
