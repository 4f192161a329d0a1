"""Two computations of one quantity, and how far they may differ."""

import math

import numpy as np
from numpy.typing import ArrayLike

from harness.cards.card import Tolerance
from harness.evidence import Evidence, Measured


class Agreement(Evidence):
    """How two vectors differ, as far as any tolerance can tell.

    `worst` holds pairs (|reference|, |difference|): only elements that no other element with a
    smaller reference outdoes, so that |difference| <= atol + rtol |reference| for all elements
    exactly if it holds for these. `cosine` is 1 for two zero vectors, 0 for one. `largest_value` is
    the largest absolute value in either vector.
    """

    n: int
    n_reference: int
    worst: list[tuple[Measured, Measured]]
    cosine: Measured
    largest_value: Measured

    @property
    def largest(self) -> float:
        """The largest absolute difference; NaN if any element is not finite."""
        differences = [difference for _, difference in self.worst]
        return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)


def compare(ours: ArrayLike, reference: ArrayLike) -> Agreement:
    """How `ours` differs from `reference`, both flattened to float64 vectors."""
    a_N = np.asarray(ours, dtype=np.float64).ravel()
    b_N = np.asarray(reference, dtype=np.float64).ravel()
    finite = a_N.shape == b_N.shape and bool(np.isfinite(a_N).all() and np.isfinite(b_N).all())
    return Agreement(
        n=a_N.size,
        n_reference=b_N.size,
        worst=_frontier(np.abs(b_N), np.abs(a_N - b_N)) if finite else [(math.nan, math.nan)],
        cosine=_cosine(a_N, b_N) if finite else math.nan,
        largest_value=float(np.abs(np.concatenate([a_N, b_N])).max(initial=0.0)),
    )


def agreement_problems(
    what: str, agreement: Agreement, tolerance: Tolerance | None, name: str
) -> list[str]:
    """Where two computations differ by more than the tolerance `name` allows."""
    if tolerance is None:
        return [f"{what}: no tolerance {name!r} is stated, so nothing can agree; add it"]
    if agreement.n != agreement.n_reference:
        return [
            f"{what}: {agreement.n} values against {agreement.n_reference} of the reference; "
            "align the two before comparing"
        ]
    if agreement.n == 0:
        return [f"{what}: no values were compared; give the check rollouts with action tokens"]
    problems = []
    excess = [(d - (tolerance.atol + tolerance.rtol * r), r, d) for r, d in agreement.worst]
    over, reference, difference = max(excess, key=lambda e: math.inf if math.isnan(e[0]) else e[0])
    if not over <= 0.0:
        bound = tolerance.atol + tolerance.rtol * reference
        problems.append(
            f"{what}: differs by {difference:.3g} where the reference is {reference:.3g}, bound "
            f"{bound:.3g} (atol {tolerance.atol:g}, rtol {tolerance.rtol:g}); "
            "find the first step of the computation that differs"
        )
    # rounding errors around zero have no direction
    directed = not agreement.largest_value <= tolerance.atol
    if directed and tolerance.min_cosine and not agreement.cosine >= tolerance.min_cosine:
        problems.append(
            f"{what}: cosine {agreement.cosine:.9g} is below {tolerance.min_cosine:g}; "
            "the two point in different directions"
        )
    return problems


def _frontier(
    reference_N: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    difference_N: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> list[tuple[float, float]]:
    """The pairs that matter: difference larger than that of every smaller reference."""
    pairs: list[tuple[float, float]] = []
    for index in np.lexsort((-difference_N, reference_N)):
        if not pairs or difference_N[index] > pairs[-1][1]:
            pairs.append((float(reference_N[index]), float(difference_N[index])))
    return pairs


def _cosine(
    a_N: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    b_N: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> float:
    lengths = float(np.linalg.norm(a_N)), float(np.linalg.norm(b_N))
    if 0.0 in lengths:
        return 1.0 if lengths == (0.0, 0.0) else 0.0
    # normalised first, so that tiny gradients do not underflow
    return float((a_N / lengths[0]) @ (b_N / lengths[1]))
