"""A rule that can't come out both ways is not a test."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.decisions import METHODS, Criterion, can_come_out_both_ways, decide
from harness.errors import CardError

Registered = Callable[..., Criterion]


def _changes(name: str) -> dict[str, Any]:
    changes: dict[str, Any] = {"method": name}
    if name == "mcnemar_exact":
        changes["margin"] = 0
    if name == "paired_betting_cs":
        changes["order_key"] = "key"
    if name == "seed_t":
        changes |= {"unit": "seeds", "seeds": (0, 1, 2)}
    if name == "seed_range":
        changes |= {"unit": "seeds", "seeds": (0, 1), "seed_range": (2.0, 1.0)}
    return changes


@pytest.mark.parametrize("name", METHODS)
def test_registered_size_can_come_out_both_ways(registered: Registered, name: str) -> None:
    """At 1,319 items every method can validate and can refute the registered margin."""
    assert can_come_out_both_ways(registered(**_changes(name)), 1319) == []


@pytest.mark.parametrize("name", ["paired_hoeffding", "paired_cp_bonferroni", "paired_betting_cs"])
def test_three_items_can_say_nothing(registered: Registered, name: str) -> None:
    """At three items neither verdict is within reach, and both problems name n and the limit."""
    problems = can_come_out_both_ways(registered(**_changes(name)), 3)
    assert ["VALIDATED" in problems[0], "REFUTED" in problems[1]] == [True, True]
    assert all("n=3" in problem for problem in problems)


def test_number_of_items_advised_is_enough_and_minimal(registered: Registered) -> None:
    """The number of items that the problem advises is the smallest that has no problem."""
    criterion = registered(margin=0.5)
    (problem,) = can_come_out_both_ways(criterion, 20)
    assert "score at least 30 items" in problem
    assert can_come_out_both_ways(criterion, 30) == []
    assert can_come_out_both_ways(criterion, 29) != []


def test_problem_is_what_decide_finds(registered: Registered) -> None:
    """Perfect data at the largest n with a problem are INCONCLUSIVE, one item more VALIDATES."""
    criterion = registered(margin=0.5)
    for n, validated in ((29, False), (30, True)):
        ids = [str(i) for i in range(n)]
        perfect = {"treatment": dict.fromkeys(ids, 1), "baseline": dict.fromkeys(ids, 0)}
        assert decide(criterion, perfect, ids).validated is validated


def test_margin_beyond_the_contrast(registered: Registered) -> None:
    """A margin that the contrast can't pass has no cure in items."""
    (above,) = can_come_out_both_ways(registered(margin=1.0), 10**6)
    assert "can't be VALIDATED" in above
    assert "change the margin" in above
    (seeds,) = can_come_out_both_ways(
        registered(method="seed_t", unit="seeds", seeds=(0, 1, 2), margin=-1.0), 3
    )
    assert "can't be REFUTED" in seeds


def test_too_few_units(registered: Registered) -> None:
    """A method that needs more units than there are says how many."""
    (problem,) = can_come_out_both_ways(registered(method="paired_empirical_bernstein"), 1)
    assert "at least 2 units, n is 1" in problem


def test_criterion_that_can_not_be_applied(registered: Registered) -> None:
    """An unknown method is a CardError here too."""
    with pytest.raises(CardError, match="unknown decision method"):
        can_come_out_both_ways(registered(method="vibes"), 100)
