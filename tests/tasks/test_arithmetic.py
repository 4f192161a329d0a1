"""Exact evaluation of written arithmetic."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tasks.arithmetic import MAX_LENGTH, ArithmeticSyntax, evaluate


def expressions():
    """Expressions in Python's own syntax, over integers and quarters."""
    numbers = st.one_of(
        st.integers(0, 99).map(str), st.integers(0, 99).map(lambda n: f"{n / 4:.2f}")
    )
    return st.recursive(
        numbers,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*/"), inner).map("".join),
            inner.map(lambda text: f"({text})"),
            inner.map(lambda text: f"-({text})"),
        ),
        max_leaves=8,
    )


def python_value(expression: str) -> Fraction | None:
    """The value by Python's own parser, with every number made a fraction first."""
    exact = ""
    number = ""
    for character in expression + " ":
        if character.isdigit() or character == ".":
            number += character
            continue
        if number:
            exact += f"Fraction('{number}')"
            number = ""
        exact += character
    try:
        return eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        return None


@settings(deadline=None, derandomize=True, max_examples=150, database=None)
@given(expressions())
def test_expressions_have_the_value_that_python_gives_them(expression):
    """Precedence, brackets, signs and exactness are those of ordinary arithmetic."""
    expected = python_value(expression)
    if expected is None:
        with pytest.raises(ArithmeticSyntax, match="division by zero"):
            evaluate(expression)
    elif len(expression) <= MAX_LENGTH:
        assert evaluate(expression) == expected


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", 14),
        ("16-3-4", 9),
        ("100/10/5", 2),
        ("-3+5", 2),
        (".1+.2", Fraction(3, 10)),
        ("20%*50", 10),
        ("$1,200 * 2", 2400),
        ("(2.)", 2),
        ("--3", None),
        ("2*-3", -6),
    ],
)
def test_annotations_as_they_are_written(expression, value):
    """Decimals without a leading zero, percent, currency and thousands are read."""
    if value is None:
        with pytest.raises(ArithmeticSyntax):
            evaluate(expression)
    else:
        assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2+",
        "(2",
        "2)",
        "2 3",
        "2**3",
        "x",
        "2=2",
        "1/0",
        "__import__('os')",
        "1" * (MAX_LENGTH + 1),
        "(" * MAX_LENGTH,
        "((((",
        ".",
    ],
)
def test_anything_else_is_refused(expression):
    """What is not arithmetic is an error of its own kind, and nothing is executed."""
    with pytest.raises(ArithmeticSyntax):
        evaluate(expression)
