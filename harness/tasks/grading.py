r"""Reading a number out of an answer and comparing it exactly.

Where the answer is, in this order: the last complete `\boxed{}` (or `\fbox{}`), else what follows
the last `####` that has a number behind it and is no heading, else the last number of the text. The
first of these that is present decides: a box without a number is no answer, whatever else the text
says. Numbers are compared as exact fractions. A percent sign or a unit is dropped, never divided
by. A number that is part of something else, as in 5², √5, ±5 or 5 million, is no answer: better
none than a wrong one that counts as right.
"""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

# longer digit strings are run-on text; int() itself refuses them beyond 4,300
MAX_DIGITS = 100
# characters searched at a time for the last number; cut at blanks, which numbers do not hold
WINDOW = 40


def is_exact(answer: Fraction | None, gold: Fraction) -> bool:
    """Whether there is an answer and it equals gold as a number, without any tolerance."""
    return answer is not None and answer == gold


def final_number(text: str) -> Fraction | None:
    """The number in the last box, else after the last `####`, else the last of the text."""
    box = last_box(text)
    if box is not None:
        return sole_number(box)
    for line in reversed(_MARKED.findall(text)):
        if (stated := _stated(line)) is not None:
            return sole_number(stated)
    return _last_number(text)


def _stated(line: str) -> str | None:
    """What a line behind `####` states as the answer; None of a heading."""
    _, equals, right = line.rpartition("=")
    if equals:
        return right
    if opening := _OPENS.match(_plain(line)):
        return opening.group()
    said = re.search(r"answer\b\D*$|answer\b[^0-9]*?(?=[-+]?\$?\.?[0-9])", line, re.IGNORECASE)
    return line[said.end() :] if said else None


def boxed_number(text: str) -> Fraction | None:
    """The number in the last box; None if there is no box or no number in it."""
    box = last_box(text)
    return None if box is None else sole_number(box)


def last_box(text: str) -> str | None:
    r"""What stands in the last complete `\boxed{...}` or `\fbox{...}`, braces balanced."""
    end = len(text)
    while (start := max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))) >= 0:
        match = _BOX.match(text, start)
        if match is not None:
            if match.group(1):
                return match.group(1)
            content = _balanced(text, match.end())
            if content is not None:
                return content
        end = start
    return None


def sole_number(text: str) -> Fraction | None:
    """The number that a short text consists of, units aside; None unless there is exactly one."""
    plain = _GROUPED.sub(lambda m: m.group().replace(" ", ""), _plain(text))
    plain = _LEADING_SIGN.sub(r"\1", plain)
    numbers = list(_NUMBER.finditer(plain))
    if len(numbers) != 1:
        return None
    rest = plain[: numbers[0].start()] + plain[numbers[0].end() :]
    changed = _NOT_A_UNIT.search(rest) or _MAGNITUDE.search(rest) or any(map(_changes, rest))
    return None if changed else _value(numbers[0])


def _changes(character: str) -> bool:
    """Whether a character beside a number makes another value of it: ½, ², √, ±, π."""
    if character in "=~":
        return False
    return character in "π∏∑!" or unicodedata.category(character) in ("No", "Sm")


def all_numbers(text: str) -> list[Fraction]:
    """Every number of the text, in order."""
    values = (_value(match) for match in _NUMBER.finditer(_plain(text)))
    return [value for value in values if value is not None]


def _last_number(text: str) -> Fraction | None:
    """The last number, sought from the last digit backwards: most texts end with it."""
    last_digit = max(text.rfind(digit) for digit in "0123456789")
    # what closes a LaTeX fraction stands after its last digit
    end = min(last_digit + 8, len(text)) if last_digit >= 0 else 0
    while end > 0:
        limit = max(end - WINDOW, 0)
        start = max(text.rfind(" ", 0, limit), text.rfind("\n", 0, limit), 0)
        plain = _plain(text[start:end])
        matches = list(_NUMBER.finditer(plain))
        if matches:
            last = matches[-1]
            beside = plain[max(last.start() - 1, 0) : last.start()] + plain[last.end() :][:1]
            # an exclamation mark at the end of a sentence is no factorial
            part = any(_changes(c) and c not in "!+<>|" for c in beside)
            return None if part else _value(last)
        end = start
    return None


def _value(match: re.Match[str]) -> Fraction | None:
    sign, whole, numerator, denominator, digits, exponent = match.groups()
    parts = [part for part in (whole, numerator, denominator, digits) if part]
    if sum(map(len, parts)) > MAX_DIGITS:
        return None
    if denominator is not None:
        if int(denominator) == 0:
            return None
        value = Fraction(int(whole or 0)) + Fraction(int(numerator), int(denominator))
    else:
        value = Fraction(digits.replace(",", "")) * Fraction(10) ** int(exponent or 0)
    return -value if sign else value


def _balanced(text: str, start: int) -> str | None:
    """The text from `start` up to the brace that closes the one before it."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return text[start : match.start()]
    return None


def _plain(text: str) -> str:
    """LaTeX and typography as plain text: dashes, currency, separators, fractions, wrappers."""
    text = _VULGAR.sub(_vulgar, text.translate(_DASHES))
    if "\\" in text or "{" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
    if "^" in text:
        text = _POWER_OF_UNIT.sub(r"\1", text)
    return text


def _vulgar(match: re.Match[str]) -> str:
    """½ as 1/2, set apart from a digit before it, which makes it a mixed number."""
    before = match.string[match.start() - 1 : match.start()]
    plain = unicodedata.normalize("NFKD", match.group()).replace("\u2044", "/")
    return f"{' ' if before.isdigit() else ''}{plain}"


def _fraction(match: re.Match[str]) -> str:
    """a/b, set apart from a digit before it, which makes it a mixed number."""
    before = match.string[match.start() - 1 : match.start()]
    return f"{' ' if before.isdigit() else ''}{match.group(1)}/{match.group(2)}"


_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_DASHES = str.maketrans(
    dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d", "-")
    | dict.fromkeys("\u00a0\u202f\u2009~", " ")
)

# a sign belongs to a number unless something stands before it that it could be subtracted from
_NUMBER = re.compile(
    r"""(?: (?<![0-9A-Za-z)\]}.\-]) (-) (?=[$£€¥]?\.?[0-9]) )? [$£€¥]?
    (?: (?: ([0-9]++)[ ]+ )? ([0-9]++)/([0-9]++) (?!/)
      | ( [0-9]{1,3}(?:,[0-9]{3})+(?![0-9]) (?:\.[0-9]+)?
        | [0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9]) (?:\.[0-9]+)?
        | [0-9]++ (?:\.[0-9]+)?
        | (?<![0-9])\.[0-9]+ )
        (?: [eE]([+-]?[0-9]{1,2})(?![0-9A-Za-z]) )? )""",
    re.VERBOSE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(-?[0-9][0-9,.]*))")
# what stands behind a marker up to its line's end, and a number that opens it
_MARKED = re.compile(r"####(?!#)[ \t]*\n?((?:(?!####)[^\n])*)")
_OPENS = re.compile(r"\s*[-+]?\s*[$£€¥]?\s*\.?[0-9].*", re.DOTALL)
# thousands set apart by blanks, where nothing else can be meant
_GROUPED = re.compile(r"(?<![0-9.,/])[0-9]{1,3}(?: [0-9]{3})+(?![0-9/])")
_MAGNITUDE = re.compile(
    r"(?<![A-Za-z])(?:hundred|thousand|[mb]illion|trillion|lakh|crore|dozen|half|k)s?(?![A-Za-z])",
    re.IGNORECASE,
)
_BRACE = re.compile(r"[{}]")
# in a box a sign may stand apart from its number: there is nothing to subtract from
_LEADING_SIGN = re.compile(r"^\s*(?:(-)|\+)\s*")
# what may stand beside a number without changing it: words, currency, percent, punctuation
_NOT_A_UNIT = re.compile(r"[\\^_+*/<>0-9-]")
_POWER_OF_UNIT = re.compile(r"([A-Za-z]\)?)\s*\^\s*\{?[0-9]\}?")
_Replacement = str | Callable[[re.Match[str]], str]
_WRAPPED: tuple[str, _Replacement] = (
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|boldsymbol|mbox|bf)\s*\{([^{}]*)\}",
    r" \1 ",
)
# each pattern starts with a literal, so that a text without it is passed over quickly
_PATTERNS: tuple[tuple[str, _Replacement], ...] = (
    (r"\{,\}", ","),
    (r"\\[!,](?=[0-9])", ""),
    (r"\\(?:[,;:! ]|q?quad|degree)", " "),
    (r"\\([$%#&])", r"\1"),
    (r"\\(?:left|right|displaystyle|dollar|euro|pounds?|[()\[\]])", ""),
    (r"\^\s*\{?\\circ\}?", " "),
    (r"\\[cdt]?frac\s*\{\s*(-?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}", _fraction),
    (r"\\[cdt]?frac\s*\{\s*(-?[0-9]+)\s*\}\s*([0-9])", _fraction),
    (r"\\[cdt]?frac\s*([0-9])\s*\{\s*([0-9]+)\s*\}", _fraction),
    (r"\\[cdt]?frac\s*([0-9])\s*([0-9])", _fraction),
    # the innermost of wrappers first
    _WRAPPED,
    _WRAPPED,
    (r"\{([0-9][0-9.,]*)\}", r"\1"),
)
_LATEX = [(re.compile(pattern), replacement) for pattern, replacement in _PATTERNS]
