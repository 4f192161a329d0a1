"""pass@k, pass^k and best of k from n samples of an item: per item first, then the mean."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from harness.errors import StatisticsError


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): the chance that k of the n samples hold a correct one.

    Chen et al. 2021, exact. Raises StatisticsError unless 0 <= c <= n and 1 <= k <= n: with fewer
    samples than k it is not identified.
    """
    _check(n, c, k)
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


def pass_pow_k(n: int, c: int, k: int) -> float:
    """C(c, k) / C(n, k): the chance that k of the n samples are all correct. Raises as above."""
    _check(n, c, k)
    return float(Fraction(math.comb(c, k), math.comb(n, k)))


def pass_at_k_items(n_I: Sequence[int], c_I: Sequence[int], k: int) -> NDArray[np.float64]:
    """pass@k of every item, in [0, 1]: scores for any paired method of bounds (0, 1)."""
    if len(n_I) != len(c_I) or len(n_I) == 0:
        raise StatisticsError(f"{len(n_I)} sample counts and {len(c_I)} correct counts")
    return np.array([pass_at_k(n, c, k) for n, c in zip(n_I, c_I, strict=True)])


def best_of(values: Sequence[float], k: int) -> float:
    """Unbiased estimate of E[max of k draws] from n >= k draws; the maximum where n = k.

    sum_i v_(i) C(i-1, k-1) / C(n, k) over ascending v_(i): C(i-1, k-1) of all subsets of size k
    have the i-th smallest draw as their largest.

    Raises:
        StatisticsError: k is not in 1..n, or a value is not finite.
    """
    if not 1 <= k <= len(values) or not all(map(math.isfinite, values)):
        raise StatisticsError(
            f"best of {k} from {list(values)}; k lies in 1..n and the values are finite"
        )
    total = sum(v * math.comb(i, k - 1) for i, v in enumerate(sorted(values)))
    return total / math.comb(len(values), k)


def _check(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n:
        raise StatisticsError(f"k is {k} with n = {n} samples: pass@k needs 1 <= k <= n")
    if not 0 <= c <= n:
        raise StatisticsError(f"{c} correct of {n} samples: c must lie between 0 and n")
