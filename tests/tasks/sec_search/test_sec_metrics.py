"""What turns and episodes leave behind, and how an evaluation sums it up."""

import math

import pytest

from harness.errors import StatisticsError
from harness.tasks.sec_search import SearchSession, score
from harness.tasks.sec_search.metrics import (
    Progress,
    episode_metrics,
    episode_reward,
    evaluation_metrics,
    turn_metrics,
)


def draw(f4: float, precision: float, recall: float) -> dict[str, float]:
    """The scores of one episode."""
    return {"f4": f4, "precision": precision, "recall": recall}


def test_each_metric_has_its_own_best():
    """Best of 2 is taken for each metric apart, the mean over all draws of all questions."""
    episodes_Q_D = [
        [draw(0.2, 1.0, 0.2), draw(0.6, 0.5, 0.7)],
        [draw(0.0, 0.0, 0.0), draw(1.0, 1.0, 1.0)],
    ]
    assert evaluation_metrics(episodes_Q_D) == pytest.approx(
        {
            "f4": 0.45,
            "f4_best_of_2": 0.8,
            "precision": 0.625,
            "precision_best_of_2": 1.0,
            "recall": 0.475,
            "recall_best_of_2": 0.85,
        }
    )


@pytest.mark.parametrize(
    "episodes_Q_D",
    [[], [[]], [[draw(1, 1, 1)], [draw(1, 1, 1)] * 2], [[draw(math.nan, 1, 1)]]],
)
def test_a_missing_draw_is_not_a_smaller_sample(episodes_Q_D):
    """Questions with fewer draws, or a score that is no number, stop the evaluation."""
    with pytest.raises(StatisticsError):
        evaluation_metrics(episodes_Q_D)


def test_turns_are_differences_and_episodes_are_sums(task):
    """A turn counts what happened in it; an episode counts all, and scores the set."""
    query, session = task.test[0], SearchSession(task.retriever)
    session.search("term loan amount", 3)
    before = Progress.of(session)
    session.search("office lease area", 2)
    session.curate([*list(session.encountered)[:2], "stranger"])
    turn = turn_metrics(before, Progress.of(session), off_format=False)
    assert (turn["turn/search"], turn["turn/curate"], turn["turn/curated"]) == (1, 1, 2)
    assert turn["turn/encountered"] == len(session.encountered) - before.encountered
    assert turn["turn/invalid_curations"] == 1
    episode = episode_metrics(session, query, turns=2)
    assert (episode["calls/search"], episode["curated"], episode["turns"]) == (2, 2, 2)
    assert episode["f4"] == score(session.curated, query.facts).f_beta
    assert episode["encountered_recall"] == score(session.encountered, query.facts).recall


def test_a_floored_episode_is_worth_the_same_as_an_empty_one(task):
    """The floor is the reward of an empty set, whatever was curated."""
    query, session = task.test[0], SearchSession(task.retriever)
    session.encountered = dict.fromkeys(query.gold, "t")
    session.curate(sorted(query.gold))
    assert episode_reward(session, query, floored=False) == 1.0
    assert episode_reward(session, query, floored=True) == -0.2
    assert episode_reward(SearchSession(task.retriever), query, floored=False) == -0.2
