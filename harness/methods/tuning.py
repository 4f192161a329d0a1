"""Choosing a learning rate on a grid that grows where the best sits at an edge."""

from collections.abc import Mapping

Curve = Mapping[float, float]
"""Held-out accuracy by learning rate."""


def best_rate(curve: Curve) -> float:
    """The rate of the highest accuracy; of equals the smallest, which changes the model least."""
    return min(curve, key=lambda rate: (-curve[rate], rate))


def edge_rates(curves: Mapping[str, Curve], factor: float) -> list[float]:
    """The rates by which the grid has to grow: one beyond each edge where some best sits.

    Args:
        curves: of every role, all over the same rates.
        factor: above 1, from the edge to the next rate.
    """
    best = [best_rate(curve) for curve in curves.values()]
    grid = [rate for curve in curves.values() for rate in curve]
    lowest, highest = min(grid), max(grid)
    return [
        *([lowest / factor] if lowest in best else []),
        *([highest * factor] if highest in best else []),
    ]
