"""The best of k draws, from n of them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import StatisticsError
from harness.statistics import best_of


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.data())
def test_best_of_k_is_the_mean_maximum_over_all_subsets(values, data):
    """The estimator equals the average maximum over every subset of k draws."""
    k = data.draw(st.integers(1, len(values)))
    subsets = [max(subset) for subset in itertools.combinations(values, k)]
    assert best_of(values, k) == pytest.approx(math.fsum(subsets) / len(subsets), abs=1e-12)


def test_best_of_two_draws_is_the_larger_one():
    """And the best of one of them is their mean."""
    assert best_of([0.2, 0.6], 2) == 0.6
    assert best_of([0.2, 0.6], 1) == pytest.approx(0.4)


@pytest.mark.parametrize(("values", "k"), [([], 1), ([1.0], 2), ([1.0], 0), ([math.nan], 1)])
def test_best_of_refuses_missing_draws(values, k):
    """Fewer draws than k, or a draw that is no number, is an error and not a smaller n."""
    with pytest.raises(StatisticsError, match="best of"):
        best_of(values, k)
