"""Does a limit clear a margin? The same formulas as in ``intervals``, in 60 digits.

Doubles carry 16 digits, so a limit that lies within 1e-12 of its margin is compared here, from
exact fractions of the data. ln(2/alpha) is transcendental for a rational alpha: there are no ties.
"""

from decimal import Decimal, localcontext
from fractions import Fraction

DIGITS = 60


def hoeffding_clears(
    excess: Fraction, n: int, range: Fraction, alpha: Fraction, sides: int
) -> bool:
    """Whether excess = mean - margin is above R sqrt(ln(sides/alpha) / (2n))."""
    with localcontext(prec=DIGITS):
        log_term = _decimal(Fraction(sides) / alpha).ln()
        return _decimal(excess) > _decimal(range) * (log_term / (2 * n)).sqrt()


def empirical_bernstein_clears(
    excess: Fraction, variance: Fraction, n: int, range: Fraction, events_by_alpha: Fraction
) -> bool:
    """Whether excess is above sqrt(2 V L/n) + 7 R L/(3(n-1)) with L = ln(events_by_alpha)."""
    with localcontext(prec=DIGITS):
        log_term = _decimal(events_by_alpha).ln()
        spread = (2 * _decimal(variance) * log_term / n).sqrt()
        return _decimal(excess) > spread + 7 * _decimal(range) * log_term / (3 * (n - 1))


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
