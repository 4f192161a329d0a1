"""Decimals as exact fractions: a rule at its very edge is decided by what a card says.

Scores are read as the decimals they print as: 0.3 / 0.2 is 3/2 here, though not in doubles.
"""

from fractions import Fraction

from harness.statistics.checked import finite


def as_fraction(value: float) -> Fraction:
    """Return the decimal that ``value`` prints as, exactly: 0.1 becomes 1/10."""
    return Fraction(repr(finite(value, "value")))
