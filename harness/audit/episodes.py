"""An episode worked out again from what it curated: precision, recall, F4 and the reward."""

from collections.abc import Mapping, Sequence

from harness.cards.registration import SearchSpec
from harness.tasks.sec_search import Fact

CLOSE = 1e-9
"""Two float64 computations of a number in [-1, 1]."""

EMPTY = -0.2
"""What an empty curated set is paid."""

BROKEN = ("max_tokens", "parse_error")
"""Endings that are paid like an empty set where a broken reply is registered to be."""


def episode_fault(
    figures: Mapping[str, float],
    reward: float,
    search: SearchSpec,
    chosen: Sequence[str],
    facts: Sequence[Fact],
) -> str | None:
    """What of an episode is not what its curated set and the question make, None if all is.

    Args:
        figures: those of the episode, by name.
        reward: what it was paid.
        search: the registered settings of the task.
        chosen: the chunks that it curated.
        facts: those of its question.
    """
    curated, most = len(set(chosen)), search.session.max_curated
    if len(chosen) != curated or curated > most or figures["curated"] != curated:
        return (
            f"has {figures['curated']:g} curated chunks, {len(chosen)} are stored, {most} at most"
        )
    if figures["empty"] != (curated == 0):
        return f"has {curated} curated chunks and empty {figures['empty']:g}"
    gold = {chunk for fact in facts for chunk in fact.chunk_ids}
    found = sum(any(chunk in chosen for chunk in fact.chunk_ids) for fact in facts)
    precision = sum(chunk in gold for chunk in chosen) / curated if curated else 0.0
    recall = found / len(facts)
    for name, value in (("precision", precision), ("recall", recall)):
        if not abs(figures[name] - value) <= CLOSE:
            return f"has {name} {figures[name]:.6g}, its curated set makes {value:.6g}"
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
