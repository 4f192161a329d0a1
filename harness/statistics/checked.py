"""What every formula here asks of its input, in one place."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import StatisticsError


def finite_vector(values: ArrayLike, name: str, *, at_least: int = 1) -> NDArray[np.float64]:
    """Return ``values`` as a float64 vector of at least ``at_least`` finite numbers.

    Raises StatisticsError for another shape, a shorter vector, NaN or infinity.
    """
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise StatisticsError(f"{name} must be numbers: {error}") from error
    if vector.ndim != 1:
        raise StatisticsError(f"{name} must be one-dimensional, got shape {vector.shape}")
    if vector.size < at_least:
        raise StatisticsError(f"{name} holds {vector.size} values, at least {at_least} are needed")
    if not np.isfinite(vector).all():
        where = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise StatisticsError(f"{name}[{where}] is {vector[where]}; every value must be finite")
    return vector


def error_per_limit(alpha: float, sides: int) -> float:
    """Return the error allowed to each limit of an interval.

    ``sides=2`` splits alpha over the two limits. ``sides=1`` grants the whole of alpha to each
    limit, for rules that make a one-sided statement with either of them; the two limits together
    then cover with 1 - 2 alpha only.
    Raises StatisticsError unless 0 < alpha < 1 and sides is 1 or 2.
    """
    if not 0.0 < alpha < 1.0:
        raise StatisticsError(f"alpha is {alpha}; it must lie strictly between 0 and 1")
    if sides not in (1, 2):
        raise StatisticsError(f"sides is {sides}; it must be 1 or 2")
    return alpha / sides


def positive_int(value: int, name: str) -> int:
    """Return ``value`` if it is a whole number of at least 1, else raise StatisticsError."""
    if isinstance(value, bool) or value != int(value) or value < 1:
        raise StatisticsError(f"{name} is {value}; it must be a whole number of at least 1")
    return int(value)


def finite(value: float, name: str) -> float:
    """Return ``value`` as a float if it is finite, else raise StatisticsError."""
    if not math.isfinite(value):
        raise StatisticsError(f"{name} is {value}; it must be finite")
    return float(value)


def positive(value: float, name: str) -> float:
    """Return ``value`` as a float if it is finite and above zero, else raise StatisticsError."""
    if not math.isfinite(value) or value <= 0.0:
        raise StatisticsError(f"{name} is {value}; it must be finite and above 0")
    return float(value)
