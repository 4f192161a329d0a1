"""A task and its settings fit together, and data come from where the scale says."""

import dataclasses
from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.cards.consistency import experiment_problems

CARDS = Path(__file__).parents[2] / "experiments" / "cards"


@pytest.fixture(scope="module", name="search")
def _search():
    return load_experiment(CARDS / "tailrl_lag8_sec_search_4b.json", "embedded")


@pytest.fixture(scope="module", name="words")
def _words():
    return load_experiment(CARDS / "tailrl_lag4_sensitivity_gsm8k_08b.json", "embedded")


def changed(experiment, **registration):
    """The experiment with another registration."""
    return dataclasses.replace(
        experiment, registration=experiment.registration.model_copy(update=registration)
    )


def test_registered_experiments_fit(search, words):
    """Nothing is found where nothing is wrong."""
    assert experiment_problems(search) == experiment_problems(words) == []


def test_search_settings_belong_to_the_search_task_alone(search, words):
    """A task without its settings, or with another's, can't be run."""
    for broken in (
        changed(search, search=None),
        changed(words, search=search.registration.search),
        changed(words, task="sec_search"),
    ):
        (problem,) = experiment_problems(broken)
        assert "`search` belongs to sec_search" in problem


def test_a_curated_set_is_the_answer_of_searches_alone(search, words):
    """A number can't be read from a session, nor a set from a reply."""
    for broken, answer in ((search, "boxed"), (words, "curated_set")):
        evaluation = broken.registration.evaluation.model_copy(update={"answer": answer})
        (problem,) = experiment_problems(changed(broken, evaluation=evaluation))
        assert f"evaluation.answer is {answer}" in problem


def test_a_world_is_generated_exactly_where_the_scale_says_so(search):
    """Neither does a generated world stand in for published data, nor the other way."""
    without = search.registration.search.model_copy(update={"world": None})
    published = search.scale.model_copy(update={"data": "published"})
    for broken in (changed(search, search=without), dataclasses.replace(search, scale=published)):
        (problem,) = experiment_problems(broken)
        assert "a world is generated exactly where the scale says embedded" in problem
