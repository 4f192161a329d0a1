r"""Reading a number out of an answer and comparing it exactly.

Where the answer is, in this order: the last complete `\boxed{}` (or `\fbox{}`), else what follows
the last `####`, else the last number of the text. The first of these that is present decides: a
box without a number is no answer, whatever else the text says. Numbers are compared as exact
fractions. A percent sign or a unit is dropped, never divided by.
"""

import re
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
    _, marker, after = text.rpartition("####")
    if marker:
        return _first_number(after)
    return _last_number(text)


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
    plain = _LEADING_SIGN.sub(r"\1", _plain(text))
    numbers = list(_NUMBER.finditer(plain))
    if len(numbers) != 1:
        return None
    rest = plain[: numbers[0].start()] + plain[numbers[0].end() :]
    return None if _NOT_A_UNIT.search(rest) else _value(numbers[0])


def all_numbers(text: str) -> list[Fraction]:
    """Every number of the text, in order."""
    values = (_value(match) for match in _NUMBER.finditer(_plain(text)))
    return [value for value in values if value is not None]


def _first_number(text: str) -> Fraction | None:
    match = _NUMBER.search(_plain(text))
    return None if match is None else _value(match)


def _last_number(text: str) -> Fraction | None:
    """The last number, sought from the last digit backwards: most texts end with it."""
    last_digit = max(text.rfind(digit) for digit in "0123456789")
    # what closes a LaTeX fraction stands after its last digit
    end = min(last_digit + 8, len(text)) if last_digit >= 0 else 0
    while end > 0:
        limit = max(end - WINDOW, 0)
        start = max(text.rfind(" ", 0, limit), text.rfind("\n", 0, limit), 0)
        matches = list(_NUMBER.finditer(_plain(text[start:end])))
        if matches:
            return _value(matches[-1])
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
    text = text.translate(_DASHES)
    if "\\" in text or "{,}" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
    if "^" in text:
        text = _POWER_OF_UNIT.sub(r"\1", text)
    return text


def _fraction(match: re.Match[str]) -> str:
    """a/b, set apart from a digit before it, which makes it a mixed number."""
    before = match.string[match.start() - 1 : match.start()]
    return f"{' ' if before.isdigit() else ''}{match.group(1)}/{match.group(2)}"


_DASHES = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " ", "~": " "})

# a sign belongs to a number unless something stands before it that it could be subtracted from
_NUMBER = re.compile(
    r"""(?: (?<![0-9A-Za-z)\]}.\-]) (-) (?=\$?\.?[0-9]) )? \$?
    (?: (?: ([0-9]++)[ ]+ )? ([0-9]++)/([0-9]++) (?!/)
      | ( [0-9]{1,3}(?:,[0-9]{3})+(?![0-9]) (?:\.[0-9]+)?
        | [0-9]++ (?:\.[0-9]+)?
        | (?<![0-9])\.[0-9]+ )
        (?: [eE]([+-]?[0-9]{1,2})(?![0-9A-Za-z]) )? )""",
    re.VERBOSE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+(-?[0-9][0-9,.]*))")
_BRACE = re.compile(r"[{}]")
# in a box a sign may stand apart from its number: there is nothing to subtract from
_LEADING_SIGN = re.compile(r"^\s*(?:(-)|\+)\s*")
# what may stand beside a number without changing it: words, currency, percent, punctuation
_NOT_A_UNIT = re.compile(r"[\\^_+*/<>0-9-]")
_POWER_OF_UNIT = re.compile(r"([A-Za-z]\)?)\s*\^\s*\{?[0-9]\}?")
# each pattern starts with a literal, so that a text without it is passed over quickly
_LATEX: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\{,\}", ","),
        (r"\\[!,](?=[0-9])", ""),
        (r"\\(?:[,;:! ]|q?quad|degree)", " "),
        (r"\\([$%#&])", r"\1"),
        (r"\\(?:left|right|displaystyle|dollar|euro|pounds?|[()\[\]])", ""),
        (r"\^\s*\{?\\circ\}?", " "),
        (r"\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}", _fraction),
        (r"\\[dt]?frac\s*([0-9])\s*([0-9])", _fraction),
        (r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|bf)\s*\{([^{}]*)\}", r" \1 "),
    )
]
