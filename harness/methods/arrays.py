"""Arrays at the door of a formula: float64, of the right shape, finite."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import RunError, StatisticsError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


def finite(values: ArrayLike, what: str, ndim: int) -> FloatArray:
    """`values` as a float64 array of `ndim` dimensions that holds no NaN and no infinity.

    Args:
        values: numbers or booleans.
        what: what one value is, in the singular ("reward"), for the message.
        ndim: how many dimensions the formula needs.

    Raises:
        RunError: a value is NaN or infinite; the message names its position.
        StatisticsError: the array is empty, ragged, or has another number of dimensions.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise StatisticsError(
            f"{what}s do not form an array of {ndim} dimensions ({error}); "
            "give one number for each place"
        ) from None
    if array.ndim != ndim or array.size == 0:
        raise StatisticsError(
            f"{what}s have shape {array.shape}; give a non-empty array of {ndim} dimensions"
        )
    refuse_non_finite(array, what)
    return array


def refuse_non_finite(array: FloatArray, what: str) -> None:
    """Stop at the first NaN or infinity.

    Raises:
        RunError: names the position and the value.
    """
    bad = ~np.isfinite(array)
    if bad.any():
        index = tuple(int(axis[0]) for axis in np.nonzero(bad))
        place = index[0] if len(index) == 1 else index
        raise RunError(
            f"{what} at position {place} is {array[index]}; it must be finite; "
            f"look at what produced it ({int(bad.sum())} of {array.size} are not finite)"
        )


def same_shape(what: str, expected: tuple[int, ...], array: FloatArray) -> None:
    """Stop if `array` does not have the shape `expected`.

    Raises:
        StatisticsError: names both shapes.
    """
    if array.shape != expected:
        raise StatisticsError(
            f"{what} has shape {array.shape}, expected {expected}; align it with the others"
        )
