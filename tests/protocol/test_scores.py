import math

import pytest

from harness.errors import RunError, StatisticsError
from harness.protocol.scores import item_score, item_scores, of_steps, step_mean
from harness.tasks import gsm8k
from harness.tasks.sec_search import SearchTask


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


def draws(item, **scores):
    """One row a draw of an item."""
    rows = zip(*scores.values(), strict=True)
    return [
        {"item_id": item, "draw": n, "stop": "completed", "n_tokens": 3,
         "scores": dict(zip(scores, row, strict=True))}
        for n, row in enumerate(rows)
    ]  # fmt: skip


def test_an_item_of_several_draws_has_their_mean_or_the_best_of_them():
    """By item, in the order of the rows; each score has its own best."""
    rows = [
        *draws("b", f4=[0.2, 0.6], recall=[1.0, 0.5]),
        *draws("a", f4=[0.0, 1.0], recall=[0, 1]),
    ]

    assert item_scores(rows, "f4") == pytest.approx({"b": 0.4, "a": 0.5})
    assert list(item_scores(rows, "f4")) == ["b", "a"]
    assert item_scores(rows, "f4_best_of_2") == {"b": 0.6, "a": 1.0}
    assert item_scores(rows, "recall_best_of_2") == {"b": 1.0, "a": 1.0}


def test_graded_answers_keep_their_own_score():
    """A row of samples has pass@k of its own."""
    rows = [row([True, False], "a"), row([False, False], "b")]

    assert item_scores(rows, "pass@2") == {"a": 1.0, "b": 0.0}


def test_a_tasks_headline_is_a_score_of_its_rows():
    """Exact match sums up word problems, F4 of what was curated sums up searches."""
    assert (gsm8k.Task.headline, SearchTask.headline) == ("pass@1", "f4")
    assert item_scores([row([True, False], "a")], gsm8k.Task.headline) == {"a": 0.5}
    searched = draws("a", f4=[0.2, 0.6], recall=[1.0, 0.5])
    assert item_scores(searched, SearchTask.headline) == pytest.approx({"a": 0.4})


def test_a_score_that_episodes_do_not_have_is_an_error():
    """The ones that they have are named; missing draws are an error too."""
    rows = draws("a", f4=[0.2], recall=[0.1])

    with pytest.raises(RunError, match=r"item a: no score 'f3', episodes have \['f4', 'recall'\]"):
        item_scores(rows, "f3")
    with pytest.raises(StatisticsError, match="best of 2"):
        item_scores(rows, "f4_best_of_2")


def test_a_missing_draw_is_not_a_smaller_mean():
    """All items have the same draws, or there is no score."""
    rows = [*draws("a", f4=[0.2, 0.6]), *draws("b", f4=[0.5])]
    with pytest.raises(RunError, match=r"items have the draws \[\(0,\), \(0, 1\)\]"):
        item_scores(rows, "f4")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_an_error(value):
    """It is not averaged away."""
    with pytest.raises(StatisticsError, match="values are finite"):
        item_scores(draws("a", f4=[0.2, value]), "f4")
