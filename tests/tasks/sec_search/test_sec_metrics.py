"""What turns and episodes leave behind."""

from harness.tasks.sec_search import SearchSession, score
from harness.tasks.sec_search.metrics import (
    Progress,
    episode_metrics,
    episode_reward,
    turn_metrics,
)


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
