import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cards.card import Budget
from harness.errors import BudgetExceeded
from harness.protocol import budget
from harness.protocol.budget import Clock, read_clock, refuse_overspending, wall_seconds
from harness.store import RunStore

TIMES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8)


@pytest.fixture
def entry(tmp_path):
    """An entry of a store."""
    return RunStore(tmp_path).entry("arm/a", {"arm": "a"})


@pytest.fixture
def now(monkeypatch):
    """The time, which stands still until a test moves it."""
    clock = [1000.0]
    monkeypatch.setattr(budget.time, "time", lambda: clock[0])
    return clock


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], 0.0),
        ([(0, 10)], 10.0),
        ([(0, 10), (20, 25)], 15.0),
        ([(0, 10), (5, 15)], 15.0),
        ([(0, 10), (2, 3)], 10.0),
        ([(5, 15), (0, 10)], 15.0),
        ([(0, 10), (10, 20)], 20.0),
        ([(3, 3)], 0.0),
        ([(10, 5)], 0.0),
    ],
)
def test_two_arms_at_once_take_their_time_once(intervals, seconds):
    """Wall time is the length of the union; a clock that was set back counts nothing."""
    assert wall_seconds(intervals) == seconds


@given(TIMES)
def test_wall_time_is_the_number_of_seconds_in_which_anything_ran(starts):
    """Against counting second by second."""
    intervals = [(start, start + length) for start, length in starts]
    covered = {second for start, end in intervals for second in range(start, end)}

    assert wall_seconds(intervals) == len(covered)


def test_an_interval_ends_at_its_last_tick(entry, now):
    """A killed process leaves the time until its last tick, and the next one adds an interval."""
    clock = Clock(entry)
    now[0] = 1010.0
    clock.tick()
    now[0] = 1017.0
    clock.tick()
    now[0] = 1500.0  # killed; nobody ticks
    again = Clock(entry)
    now[0] = 1505.0
    again.tick()

    assert read_clock(entry) == [[1000.0, 1017.0], [1500.0, 1505.0]]


def test_a_clock_that_never_ticked_leaves_nothing(entry):
    """A process that did nothing spent nothing."""
    Clock(entry)

    assert read_clock(entry) == []


@pytest.mark.parametrize(("minutes", "stops"), [(0.99, True), (1.0, True), (1.01, False)])
def test_the_cap_is_reached_at_the_cap(entry, now, minutes, stops):
    """60 s of wall time against caps around a minute: value and bound are named."""
    clock = Clock(entry)
    now[0] += 60.0
    clock.tick()
    card = Budget(gpu_hours=1.0, max_wall_minutes=minutes)

    if stops:
        with pytest.raises(
            BudgetExceeded, match=rf"wall time 1\.0 min has reached the .* cap of {minutes:g} min"
        ):
            refuse_overspending(card, [entry, entry])
    else:
        refuse_overspending(card, [entry, entry])
