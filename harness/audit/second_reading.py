"""A second reader of answers, which shares nothing with the grader: plain, and easier to fool.

It looks for the last box, else behind the last marker, else at the whole response, drops everything
but digits, signs, points, commas and slashes, and takes the last number that is left. Where it and
the grader disagree over more than a few responses, one of them is wrong.
"""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from harness.records import ItemRow

MARKS = ("\\boxed{", "\\fbox{", "####")
KEPT = frozenset("0123456789.,-/")


def disagreements(rows: Sequence[ItemRow]) -> list[ItemRow]:
    """The rows whose first response the second reader grades otherwise."""
    return [row for row in rows if reads_as(row["response"], row["gold"]) is not row["correct"]]


def reads_as(response: str, gold: str) -> bool:
    """Whether the second reader finds the gold number at the end of a response."""
    found, wanted = last_value(_answer_part(response)), last_value(gold)
    return found is not None and found == wanted


def last_value(text: str) -> Decimal | None:
    """The last number of a text, thousands separators aside; None without one."""
    words = "".join(c if c in KEPT else " " for c in text.replace("\u2212", "-")).split()
    for word in reversed(words):
        value = _value(word.strip(".,-/") if word[:1] != "-" else f"-{word.strip('.,-/')}")
        if value is not None:
            return value
    return None


def _answer_part(response: str) -> str:
    places = [(response.rfind(mark), mark) for mark in MARKS if mark in response]
    boxes = [place for place in places if place[1].endswith("{")]
    if not places:
        return response
    start, mark = max(boxes or places)
    part = response[start + len(mark) :]
    return part.partition("}" if boxes else "\n")[0]


def _value(word: str) -> Decimal | None:
    above, slash, below = word.replace(",", "").partition("/")
    try:
        return Decimal(above) / Decimal(below) if slash else Decimal(above)
    except (InvalidOperation, ZeroDivisionError):
        return None
