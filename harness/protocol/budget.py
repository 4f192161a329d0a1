"""The registered wall time: clocks that survive a kill, and the cap over all of them."""

import time
from collections.abc import Iterable

from harness.cards.card import Budget
from harness.errors import BudgetExceeded
from harness.store import Entry


class Clock:
    """When an entry was being produced: one interval a start, extended at every tick.

    A process that dies leaves its interval at its last tick.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._intervals: list[list[float]] = read_clock(entry)
        now = time.time()
        self._intervals.append([now, now])

    def tick(self) -> None:
        """Say that the work goes on until now."""
        self._intervals[-1][1] = time.time()
        self._entry.publish("clock", self._intervals)


def read_clock(entry: Entry) -> list[list[float]]:
    """The (start, end) intervals in which the entry was produced, in seconds since the epoch."""
    intervals: list[list[float]] = entry.read("clock") or []
    return intervals


def refuse_overspending(budget: Budget, entries: Iterable[Entry]) -> None:
    """Stop at the registered cap.

    Raises:
        BudgetExceeded: training and evaluation have taken the card's wall minutes.
    """
    spent = wall_seconds(interval for entry in entries for interval in read_clock(entry))
    cap = budget.max_wall_minutes * 60
    if spent >= cap:
        raise BudgetExceeded(
            f"wall time {spent / 60:.1f} min has reached the registered cap of "
            f"{budget.max_wall_minutes:g} min; the state is kept, and going on needs a new "
            "registration with a larger budget"
        )


def wall_seconds(intervals: Iterable[Iterable[float]]) -> float:
    """The length of the union of (start, end) intervals: two arms at once take their time once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(tuple(interval) for interval in intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
