import math

import pytest

from harness.errors import RunError, StatisticsError
from harness.protocol.scores import item_score, of_steps, step_mean


def row(flags, item="test/00000"):
    """A row of several samples."""
    return {"item_id": item, "correct": flags[0], "correct_S": list(flags)}


def steps(values, first=0):
    """Step records with one metric."""
    return [{"step": first + i, "metrics": {"m": value}} for i, value in enumerate(values)]


def test_pass_at_k_is_the_items_own():
    """1 - C(n-c, k)/C(n, k): one right sample of 8 is pass@1 1/8 and pass@8 1; none is 0."""
    one, none = row([False] * 7 + [True]), row([False] * 8)

    assert item_score(one, "pass@1") == 0.125
    assert item_score(one, "pass@8") == 1.0
    assert item_score(one, "pass@2") == pytest.approx(1 - 21 / 28)
    assert item_score(none, "pass@8") == 0.0


def test_pass_at_k_is_never_pooled():
    """Two items of 8 samples, one solved always and one never: pass@8 is 1/2, pooled it were 1."""
    rows = [row([True] * 8), row([False] * 8, "test/00001")]

    assert sum(item_score(r, "pass@8") for r in rows) / 2 == 0.5


def test_fewer_samples_than_k_are_an_error():
    """It is not identified, and no number stands in for it."""
    with pytest.raises(StatisticsError, match="k is 8 with n = 1"):
        item_score({"item_id": "a", "correct": True}, "pass@8")


@pytest.mark.parametrize("metric", ["accuracy", "greedy_exact_match_accuracy"])
def test_any_other_metric_is_exact_match(metric):
    """The first response is right or wrong."""
    assert item_score({"item_id": "a", "correct": True}, metric) == 1.0
    assert item_score(row([False, True]), metric) == 0.0


def test_metrics_of_steps_are_told_from_those_of_items():
    """Figures of training have a slash in their name, those of evaluation have none."""
    assert of_steps("staleness/clip_raw")
    assert not of_steps("pass@8")
    assert not of_steps("greedy_exact_match_accuracy")


def test_a_step_mean_takes_exactly_the_named_steps():
    """First and last are included."""
    assert step_mean("arm a", steps([9.0, 1.0, 2.0, 9.0]), "m", 1, 2) == 1.5


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, math.nan, 2.0], [1.0, math.inf, 2.0]])
def test_fewer_steps_are_an_error_and_never_a_shorter_mean(values):
    """A missing step, or one without a finite value, is named."""
    with pytest.raises(RunError, match="arm a: m has no value at steps"):
        step_mean("arm a", steps(values), "m", 0, 2)
