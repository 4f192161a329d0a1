"""Word problems with worked solutions, and the registered kernel fitted on them."""

from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.methods import fit_tfidf
from harness.tasks.gsm8k import Problem

CARD = Path(__file__).parents[2] / "experiments" / "cards" / "gs1_vs_grpo_gsm8k_2b.json"


@pytest.fixture(scope="session")
def experiment():
    """The GS1 experiment at its embedded scale."""
    return load_experiment(CARD, "embedded")


@pytest.fixture(scope="session")
def problems():
    """400 problems of four kinds; a kind has its own words and its own number of calculations."""
    words = ("apples and pears", "trains and miles", "coins in jars", "pages of books")
    found = []
    for index in range(400):
        kind = index % 4
        question = f"Of {words[kind]} there are {index}, then {index % 7} more {words[kind]}?"
        solution = "<<1+1=2>>" * (1 + 2 * kind) + f"\n#### {index}"
        found.append(Problem(f"train/{index:05d}", question, solution, str(index)))
    return found


@pytest.fixture(scope="session")
def kernel(experiment):
    """The registered kernel."""
    return experiment.role("treatment")[0].kernel


@pytest.fixture(scope="session")
def fitted(problems, kernel):
    """TF-IDF of these problems."""
    return fit_tfidf([problem.question for problem in problems], kernel)
