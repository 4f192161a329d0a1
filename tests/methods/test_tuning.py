import pytest

from harness.methods.tuning import best_rate, edge_rates


def test_best_rate_has_the_highest_accuracy_and_of_equals_is_the_smallest():
    """A larger rate has to earn it."""
    assert best_rate({1e-4: 0.2, 3e-4: 0.5, 9e-4: 0.4}) == 3e-4
    assert best_rate({9e-4: 0.5, 1e-4: 0.2, 3e-4: 0.5}) == 3e-4


@pytest.mark.parametrize(
    ("first", "second", "grown"),
    [
        ([0.1, 0.3, 0.2], [0.1, 0.3, 0.2], []),
        ([0.3, 0.2, 0.1], [0.1, 0.3, 0.2], [0.5]),
        ([0.1, 0.3, 0.2], [0.1, 0.2, 0.3], [8.0]),
        ([0.3, 0.2, 0.1], [0.1, 0.2, 0.3], [0.5, 8.0]),
    ],
)
def test_grid_grows_where_the_best_of_any_role_sits_at_an_edge(first, second, grown):
    """For all roles together, one rate beyond each such edge."""
    rates = [1.0, 2.0, 4.0]
    curves = {"a": dict(zip(rates, first, strict=True)), "b": dict(zip(rates, second, strict=True))}

    assert edge_rates(curves, 2.0) == grown
