"""Distribution functions, typed. scipy ships no type information, so it is named only here.

``scipy.special`` rather than ``scipy.stats``: the same code underneath at a third of the import
time, and nothing here needs more.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.special as sp  # type: ignore[import-untyped] # scipy ships no stubs
from numpy.typing import NDArray

from harness.errors import StatisticsError


def normal_quantile(p: float) -> float:
    """Standard normal quantile."""
    return float(sp.ndtri(p))


def normal_cdf(x: float) -> float:
    """Standard normal distribution function; accurate in the lower tail."""
    return float(sp.ndtr(x))


def t_quantile(p: float, df: float) -> float:
    """Student t quantile with ``df`` degrees of freedom."""
    return float(sp.stdtrit(df, p))


def t_cdf(x: float, df: float) -> float:
    """Student t distribution function; accurate in the lower tail."""
    return float(sp.stdtr(df, x))


def noncentral_t_cdf(x: float, df: float, noncentrality: float) -> float:
    """Distribution function of the noncentral t."""
    return float(sp.nctdtr(df, noncentrality, x))


def beta_quantile(p: float, a: float, b: float) -> float:
    """Quantile of Beta(a, b); StatisticsError where doubles can't hold it (p far below 1e-100)."""
    quantile = float(sp.betaincinv(a, b, p))
    if math.isnan(quantile):
        raise StatisticsError(f"Beta({a}, {b}) has no quantile at {p} in doubles; use a larger p")
    return quantile


def binomial_cdf_half(k: int, n: int) -> float:
    """P(Bin(n, 1/2) <= k), with k in -1..n."""
    return 0.0 if k < 0 else float(sp.bdtr(k, n, 0.5))


def binomial_pmf_half(k: int, n: int) -> float:
    """P(Bin(n, 1/2) = k)."""
    return float(np.exp(_log_choose(np.array([k]), n)[0] + n * np.log(0.5)))


def binomial_pmf(k_K: NDArray[np.int64], n: int, p: float) -> NDArray[np.float64]:
    """P(Bin(n, p) = k) for each k; 0 < p < 1."""
    log_pmf: NDArray[np.float64] = _log_choose(k_K, n) + k_K * np.log(p) + (n - k_K) * np.log1p(-p)
    return np.exp(log_pmf)


def binomial_at_least(
    k_K: NDArray[np.int64], n_K: NDArray[np.int64], p: float
) -> NDArray[np.float64]:
    """P(Bin(n, p) >= k) elementwise: 1 where k <= 0 and 0 where k > n."""
    inside = (k_K > 0) & (k_K <= n_K)
    upper_tail = sp.bdtrc(np.where(inside, k_K - 1, 0), np.where(inside, n_K, 1), p)
    result: NDArray[np.float64] = np.where(inside, upper_tail, np.where(k_K <= 0, 1.0, 0.0))
    return result


def root(f: Callable[[float], float], low: float, high: float, tolerance: float = 1e-14) -> float:
    """Return where the monotone ``f`` crosses zero between ``low`` and ``high``.

    The end whose sign the other shares is returned when there is no crossing: the caller's f must
    be monotone, so that end is the nearest point to one.
    """
    # only some intervals need a solver, and importing it costs a tenth of a second
    from scipy.optimize import brentq  # type: ignore[import-untyped] # scipy ships no stubs

    at_low, at_high = f(low), f(high)
    if at_low == 0.0 or (at_low > 0.0) == (at_high > 0.0):
        return low if abs(at_low) <= abs(at_high) else high
    return float(brentq(f, low, high, xtol=tolerance, rtol=8.9e-16, maxiter=200))


def _log_choose(k_K: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    log_choose: NDArray[np.float64] = (
        sp.gammaln(n + 1.0) - sp.gammaln(k_K + 1.0) - sp.gammaln(n - k_K + 1.0)
    )
    return log_choose
