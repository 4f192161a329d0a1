"""The families of word problems: wordings, number ranges, and the plan that solves each.

A family has words of its own, so that prompts of one family are close in TF-IDF and prompts of two
families are not. Every number and every intermediate result lies in 1..99.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

LARGEST = 99

NAMES = ("Ann", "Ben", "Cora", "Dan", "Ella", "Finn", "Gus", "Hana", "Ivan", "June", "Kofi", "Lena")

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}


@dataclass(frozen=True)
class Step:
    """One line of reasoning: `expression` (such as "3*4"), its `value`, and what was counted."""

    expression: str
    value: int
    unit: str


@dataclass(frozen=True)
class Family:
    """A kind of word problem.

    `wordings` are format strings over {name}, {thing} and the keys of `ranges` (inclusive bounds).
    `plan` holds (expression, unit) pairs; x, y, z name the results of the earlier lines.
    """

    name: str
    wordings: tuple[str, ...]
    things: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int]]
    plan: tuple[tuple[str, str], ...]

    def draw_numbers(self, rng: Random) -> dict[str, int]:
        """Draw the numbers of one problem, again and again until every line of the plan holds."""
        while True:
            numbers = {key: rng.randint(low, high) for key, (low, high) in self.ranges.items()}
            if self.solve(numbers) is not None:
                return numbers

    def solve(self, numbers: Mapping[str, int]) -> tuple[Step, ...] | None:
        """The plan with numbers filled in; None if a result is inexact or outside 1..99."""
        known = dict(numbers)
        steps = []
        for result, (template, unit) in zip("xyz", self.plan, strict=False):
            expression = template.format(**known)
            value = evaluate(expression)
            if value is None or not 1 <= value <= LARGEST:
                return None
            known[result] = value
            steps.append(Step(expression, value, unit))
        return tuple(steps)

    def ask(self, numbers: Mapping[str, int], rng: Random) -> str:
        """Word the question: a wording, a name and a thing drawn from `rng`."""
        wording = rng.choice(self.wordings)
        return wording.format(name=rng.choice(NAMES), thing=rng.choice(self.things), **numbers)


def evaluate(expression: str) -> int | None:
    """Value of "a+b", "a-b", "a*b" or "a/b" over integers; None if a/b leaves a remainder.

    Raises:
        ValueError: the expression has none of these operators.
    """
    for symbol, apply in _OPERATORS.items():
        left, found, right = expression.partition(symbol)
        if found:
            exact = symbol != "/" or int(left) % int(right) == 0
            return apply(int(left), int(right)) if exact else None
    raise ValueError(f"expression {expression!r} has none of + - * /; write it as 'a+b'")


FAMILIES = (
    Family(
        name="change",
        wordings=(
            "{name} buys {a} {thing} at ${b} each and pays with ${c}. How much change is due?",
            "{name} pays ${c} for {a} {thing} at ${b} each. How much change does {name} get?",
            "At the shop {thing} cost ${b} each. {name} buys {a} and pays ${c}. How much change?",
        ),
        things=("pens", "mugs", "caps", "toys"),
        ranges={"a": (2, 9), "b": (2, 12), "c": (10, 99)},
        plan=(("{a}*{b}", "dollars spent"), ("{c}-{x}", "dollars change")),
    ),
    Family(
        name="age",
        wordings=(
            "{name} is {a} years old. An uncle is {b} times as old. How old is "
            "the uncle in {c} years?",
            "{name}, {a} years old, has an uncle {b} times as old. In {c} "
            "years, how old is the uncle?",
        ),
        things=("",),
        ranges={"a": (3, 19), "b": (2, 9), "c": (2, 30)},
        plan=(("{a}*{b}", "years now"), ("{x}+{c}", "years then")),
    ),
    Family(
        name="wages",
        wordings=(
            "{name} earns ${a} an hour and works {b} hours on {thing} and {c} on "
            "Sunday. What is the pay?",
            "{name} works {b} hours on {thing} and {c} hours on Sunday for ${a} "
            "an hour. What is the pay?",
        ),
        things=("Monday", "Tuesday", "Friday"),
        ranges={"a": (2, 19), "b": (1, 20), "c": (1, 20)},
        plan=(("{b}+{c}", "hours worked"), ("{a}*{x}", "dollars of pay")),
    ),
    Family(
        name="stall",
        wordings=(
            "{name} packs {a} boxes of {b} {thing}, sells {c} and gives away {d}. "
            "How many {thing} are left?",
            "{name} has {a} boxes of {b} {thing}. After selling {c} and giving "
            "away {d}, how many are left?",
        ),
        things=("apples", "pears", "plums", "lemons"),
        ranges={"a": (2, 9), "b": (2, 12), "c": (1, 40), "d": (1, 30)},
        plan=(("{a}*{b}", "packed"), ("{x}-{c}", "unsold"), ("{y}-{d}", "left")),
    ),
    Family(
        name="sweets",
        wordings=(
            "{name} shares {a} red and {b} green {thing} among {c} kids. Each kid eats "
            "{d}. How many has each left?",
            "{c} kids share {a} red and {b} green {thing} of {name}. Each kid eats "
            "{d}. How many has each left?",
        ),
        things=("sweets", "gums", "candies"),
        ranges={"a": (4, 50), "b": (4, 50), "c": (2, 9), "d": (1, 9)},
        plan=(("{a}+{b}", "in all"), ("{x}/{c}", "a kid"), ("{y}-{d}", "left")),
    ),
    Family(
        name="bus",
        wordings=(
            "A {thing} leaves with {a} riders. {b} get off, {c} get on, then {d} get "
            "off. How many riders stay?",
            "{a} riders are on a {thing}: {b} get off, {c} get on and {d} get "
            "off. How many riders stay?",
        ),
        things=("bus", "tram", "ferry"),
        ranges={"a": (20, 80), "b": (2, 40), "c": (2, 40), "d": (2, 40)},
        plan=(("{a}-{b}", "riders"), ("{x}+{c}", "riders"), ("{y}-{d}", "stay")),
    ),
    Family(
        name="weather",
        wordings=(
            "At dawn it is {a} degrees. It warms {b} degrees an hour for {c} hours, then "
            "cools {d}. How warm is it?",
            "It is {a} degrees at dawn, warms {b} degrees an hour for {c} hours and "
            "cools {d}. How warm is it?",
        ),
        things=("",),
        ranges={"a": (2, 30), "b": (2, 9), "c": (2, 9), "d": (2, 30)},
        plan=(("{b}*{c}", "degrees up"), ("{a}+{x}", "degrees"), ("{y}-{d}", "degrees")),
    ),
    Family(
        name="garden",
        wordings=(
            "A garden grows {a} rows of {b} {thing} and {c} rows of {d} tulips. How "
            "many flowers grow there?",
            "{name} plants {a} rows of {b} {thing} and {c} rows of {d} tulips. "
            "How many flowers grow?",
        ),
        things=("roses", "lilies", "daisies"),
        ranges={"a": (2, 9), "b": (2, 9), "c": (2, 9), "d": (2, 9)},
        plan=(("{a}*{b}", "in front"), ("{c}*{d}", "tulips"), ("{x}+{y}", "flowers")),
    ),
)
