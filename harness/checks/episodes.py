"""An episode's figures worked out again: F4 from precision and recall, the reward from F4."""

from collections.abc import Mapping

from harness.cards.registration import SearchSpec

CLOSE = 1e-9
"""Two float64 computations of a number in [-1, 1]."""

EMPTY = -0.2
"""What an empty curated set is paid."""

BROKEN = ("max_tokens", "parse_error")
"""Endings that are paid like an empty set where a broken reply is registered to be."""


def episode_fault(
    figures: Mapping[str, float], reward: float, search: SearchSpec, facts: int | None = None
) -> str | None:
    """What of an episode contradicts the rest of it, None if nothing does.

    The curated set itself is not stored: its precision is a share of its chunks, and its recall one
    of the question's `facts`, where their number is known.
    """
    precision, recall, curated = figures["precision"], figures["recall"], figures["curated"]
    if not 0 <= curated <= search.session.max_curated or figures["empty"] != (curated == 0):
        return (
            f"has {curated:g} curated chunks, {search.session.max_curated} at most, and empty "
            f"{figures['empty']:g}"
        )
    for name, value, of in (("precision", precision, curated), ("recall", recall, facts)):
        if of is not None and not (0.0 <= value <= 1.0 and _whole(value * of)):
            return f"has {name} {value:.6g}, which is no share of {of:g}"
    f4 = 17 * precision * recall / (16 * precision + recall) if precision and recall else 0.0
    if not abs(figures["f4"] - f4) <= CLOSE:
        return (
            f"has F4 {figures['f4']:.6g}, precision {precision:.6g} and recall {recall:.6g} make "
            f"{f4:.6g}"
        )
    floored = search.broken_reply == "floor" and any(figures[f"stop={why}"] for why in BROKEN)
    paid = EMPTY if curated == 0 or floored else f4
    if not abs(reward - paid) <= CLOSE:
        return f"has the reward {reward:.6g}, {curated:g} chunks of F4 {f4:.6g} are paid {paid:.6g}"
    if not 1 <= figures["turns"] <= search.max_turns:
        return f"has {figures['turns']:g} turns, 1 to {search.max_turns} are registered"
    return None


def _whole(value: float) -> bool:
    return abs(value - round(value)) <= CLOSE * max(1.0, abs(value))
