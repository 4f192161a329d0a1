"""The reward: published test points and bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DataError, StatisticsError
from harness.tasks.sec_search import Fact, f_beta, score

UNIT = st.floats(0, 1)


def facts(*groups: str) -> tuple[Fact, ...]:
    """One fact for each word; its letters are the chunks that show it."""
    return tuple(Fact(group, tuple(group), False) for group in groups)


@pytest.mark.parametrize(
    ("precision", "recall", "expected"),
    [
        (1, 1, 1.0),
        (1, 1 / 3, 0.3469),
        (1 / 3, 1, 0.8947),
        (0.5, 2 / 3, 0.6538),
        (0.1, 1, 0.6538),
        (1 / 30, 1 / 3, 0.2179),
        (0, 0, 0.0),
    ],
)
def test_f4_has_the_published_points(precision, recall, expected):
    """F-beta at beta 4 is 17PR / (16P + R)."""
    assert f_beta(precision, recall) == pytest.approx(expected, abs=5e-5)


@given(UNIT, UNIT, st.floats(0.1, 10))
def test_f_beta_lies_between_precision_and_recall(precision, recall, beta):
    """A weighted harmonic mean never leaves the interval of what it averages."""
    value = f_beta(precision, recall, beta)
    assert min(precision, recall) - 1e-12 <= value <= max(precision, recall) + 1e-12


@pytest.mark.parametrize(
    "numbers", [(1.1, 0, 4), (0, -0.1, 4), (0, math.nan, 4), (1, 1, 0), (1, 1, math.inf)]
)
def test_f_beta_refuses_what_is_no_share(numbers):
    """NaN and values outside [0, 1] are errors where they arise."""
    with pytest.raises(StatisticsError, match="lie in"):
        f_beta(*numbers)


def test_precision_counts_chunks_and_recall_counts_facts():
    """Two chunks of one fact raise precision, yet find one fact only."""
    result = score(["a", "b", "x", "y"], facts("abc", "de", "f"))
    assert (result.precision, result.recall, result.curated) == (0.5, 1 / 3, 4)
    assert result.reward == result.f_beta == pytest.approx(17 * 0.5 / 3 / (8 + 1 / 3))


def test_a_chunk_may_show_several_facts():
    """One chunk that shows two facts finds both."""
    assert score(["a"], facts("ab", "ac")).recall == 1.0


def test_an_empty_set_costs_a_fifth_and_a_wrong_one_nothing():
    """Curating nothing is worth -0.2; curating only what is wrong is worth 0."""
    assert score([], facts("a")).reward == -0.2
    assert score([], facts("a")).f_beta == 0.0
    assert score(["x"], facts("a")).reward == 0.0


def test_repeats_and_order_do_not_matter():
    """The curated ids are a set."""
    assert score("abab", facts("a", "c")) == score("ba", facts("a", "c"))


@pytest.mark.parametrize("broken", [(), (Fact("x", (), False),)])
def test_what_can_not_be_scored_is_refused(broken):
    """Without facts, or with a fact that no chunk shows, there is no score."""
    with pytest.raises(DataError, match="fact"):
        score(["a"], broken)
