"""The catalogue itself: each mistake once, each kind at most once in a session."""

from collections import Counter

from mistakes import evidence, first_steps, gates, records, scales, whole_run
from mistakes.live import LIVE

CATALOGUE = (
    *evidence.MISTAKES,
    *records.MISTAKES,
    *first_steps.MISTAKES,
    *first_steps.REFUSED,
    *gates.MISTAKES,
    gates.ENGINE,
    gates.NAN,
    *whole_run.MISTAKES,
    *scales.MISTAKES,
)


def test_a_mistake_stands_once_with_words_and_an_item():
    """A way, a setting and a name mean one mistake, and its message has words of a cause."""
    cells = Counter((m.way, setting, m.name) for m in CATALOGUE for setting in m.settings)

    assert {cell for cell, count in cells.items() if count > 1} == set()
    assert all(mistake.items and len(mistake.words) > 2 for mistake in CATALOGUE)


def test_sessions_run_one_mistake_of_each_kind():
    """Two of one place and one stage would take the same path through a session."""
    live = [*LIVE, *(mistake for mistake in scales.MISTAKES if mistake.live)]
    kinds = Counter(mistake.kind for mistake in live)

    assert max(kinds.values()) == 1
    assert {where for where, _ in kinds} >= {
        "scale", "data", "reward", "estimator", "kernel", "loop", "service"
    }  # fmt: skip
