"""Exact evaluation of written arithmetic, without `eval`: + - * / and brackets over decimals."""

import re
from fractions import Fraction

# bounds on what a calculator annotation can sensibly hold
MAX_LENGTH = 100

_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(.))", re.DOTALL)


class ArithmeticSyntax(ValueError):
    """The text is not arithmetic of the kind that is read here, or divides by zero."""


def evaluate(expression: str) -> Fraction:
    """The value of an expression such as "(16-3-4)*.5", as an exact fraction.

    A percent sign after a number divides it by 100; `$` and thousands commas are passed over.

    Raises:
        ArithmeticSyntax: anything else stands in it, or it divides by zero.
    """
    if len(expression) > MAX_LENGTH:
        raise ArithmeticSyntax(f"expression of {len(expression)} characters, above {MAX_LENGTH}")
    reader = _Reader(expression.strip().replace("$", "").replace(",", ""))
    value = reader.sum()
    reader.end()
    return value


class _Reader:
    """Recursive descent over the tokens: sums of products of signed factors."""

    def __init__(self, text: str) -> None:
        self._tokens = [number or other for number, other in _TOKEN.findall(text)]
        self._next = 0

    def sum(self) -> Fraction:
        value = self._product()
        while (sign := self._take("+", "-")) is not None:
            term = self._product()
            value = value + term if sign == "+" else value - term
        return value

    def end(self) -> None:
        if self._next < len(self._tokens):
            raise ArithmeticSyntax(f"{self._tokens[self._next]!r} is not arithmetic")

    def _product(self) -> Fraction:
        value = self._factor()
        while (sign := self._take("*", "/")) is not None:
            factor = self._factor()
            if sign == "*":
                value *= factor
            elif factor == 0:
                raise ArithmeticSyntax("division by zero")
            else:
                value /= factor
        return value

    def _factor(self) -> Fraction:
        sign = -1 if self._take("+", "-") == "-" else 1
        if self._take("("):
            value = self.sum()
            if self._take(")") is None:
                raise ArithmeticSyntax("a bracket is not closed")
        else:
            value = self._number()
        while self._take("%"):
            value /= 100
        return sign * value

    def _number(self) -> Fraction:
        token = self._tokens[self._next] if self._next < len(self._tokens) else ""
        if not token[-1:].isdigit() and not token[:1].isdigit():
            raise ArithmeticSyntax(f"a number is missing before {token!r}")
        self._next += 1
        return Fraction(token)

    def _take(self, *wanted: str) -> str | None:
        token = self._tokens[self._next] if self._next < len(self._tokens) else ""
        if token not in wanted:
            return None
        self._next += 1
        return token
