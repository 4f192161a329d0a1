"""How far single steps move log-probs, and the rule of aggregation that this gives away."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

RATIO_TOLERANCE = 0.05
# float32 log-probs repeat to about 1e-6, so smaller moves can't carry 5 per cent
SMALLEST_MOVE = 1e-4
NOISE_CLEARANCE = 25.0
"""Times the noise of one log-prob: of the 32 of a move most of it averages out."""

SMALLEST_COSINE = 0.99

# how far each probe moves, relative to one datum, under a sum over tokens and datums
EXPECTED = {
    "two_copies": 2.0,
    "doubled_advantages": 2.0,
    "longer": 1.0,
    "halves": 1.0,
    "doubled_ratio": 2.0,
}
# the same under other rules; `longer` is twice as long, all of `one` carries advantage
KNOWN = {
    "mean over the datums of a batch": (1.0, 2.0, 1.0, 0.5, 2.0),
    "mean over tokens, of a batch, or of sequences and then datums": (1.0, 2.0, 0.5, 0.5, 2.0),
    "mean over the tokens of a sequence, summed over datums": (2.0, 2.0, 0.5, 1.0, 2.0),
    "mean over the tokens that carry advantage, in each sequence": (2.0, 2.0, 1.0, 2.0, 2.0),
    "mean over the tokens that carry advantage, in the batch": (1.0, 2.0, 1.0, 1.0, 2.0),
    "division by the sum of the advantages": (1.0, 1.0, 1.0, 1.0, 2.0),
    "a sum, with the ratio the wrong way round": (2.0, 2.0, 1.0, 1.0, 0.5),
    "a sum, without the ratio": (2.0, 2.0, 1.0, 1.0, 1.0),
}


def move_lines(
    moves_T: Mapping[str, Sequence[float]], ratios: Mapping[str, float], noise: float = 0.0
) -> tuple[list[str], list[str]]:
    """Lines on how log-probs move: (failures, what can't be verified)."""
    missing = [name for name in ("one", *EXPECTED) if not moves_T.get(name)]
    if missing:
        return [], [f"aggregation: no move measured for {', '.join(missing)}; probe them"]
    move = largest(moves_T["one"])
    smallest = smallest_move(noise)
    if not move >= smallest:
        return [], [
            f"aggregation: one step moves log-probs by {move:.3g}, below {smallest:.3g}, too "
            "little to measure; probe with a larger step, or use a service that repeats itself"
        ]
    unlike = {name: _cosine(moves_T[name], moves_T["one"]) for name in EXPECTED}
    name, cosine = min(unlike.items(), key=lambda item: -2.0 if math.isnan(item[1]) else item[1])
    if not cosine >= SMALLEST_COSINE:
        return [], [
            f"aggregation: {name} moves log-probs in another direction than one datum (cosine "
            f"{cosine:.3f}, bound {SMALLEST_COSINE:g}): noise, or clients that start unequal; "
            "look at restoration"
        ]
    failures = [
        f"aggregation: {name} moves log-probs {ratios[name]:.3f} times as far as one datum, "
        f"{expected:g} expected within {RATIO_TOLERANCE:.0%}{_known(ratios)}; "
        "use a service that sums over tokens and datums"
        for name, expected in EXPECTED.items()
        if not abs(ratios[name] - expected) <= RATIO_TOLERANCE * expected
    ]
    return failures, []


def smallest_move(noise: float) -> float:
    """The smallest move that can be compared with another; NaN where the noise is not known."""
    return float(np.max([SMALLEST_MOVE, NOISE_CLEARANCE * noise]))


def move_ratios(moves_T: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each probe's move, projected on the move of one datum; empty if that did not move."""
    one_T = _vector(moves_T.get("one", []))
    norm = float(one_T @ one_T)
    if not norm > 0.0:
        return {}
    return {
        name: float(_vector(moves_T[name]) @ one_T) / norm
        for name in EXPECTED
        if len(moves_T.get(name, ())) == one_T.size
    }


def largest(values: Sequence[float]) -> float:
    """The largest absolute value, 0 of none."""
    return float(np.abs(_vector(values)).max()) if len(values) else 0.0


def _known(ratios: Mapping[str, float]) -> str:
    """Which other rule the measured ratios fit, as an addition to a sentence."""
    for rule, expected in KNOWN.items():
        fits = zip(EXPECTED, expected, strict=True)
        if all(abs(ratios[name] - value) <= RATIO_TOLERANCE * value for name, value in fits):
            return f" (this fits {rule})"
    return ""


def _vector(values: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _cosine(a_T: Sequence[float], b_T: Sequence[float]) -> float:
    if len(a_T) != len(b_T):
        return math.nan
    a, b = _vector(a_T), _vector(b_T)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    # a probe that does not move at all has no direction that contradicts
    return float(a @ b) / norms if norms != 0.0 else 1.0
