"""A small experiment, word problems and a scripted service for it."""

import sys
from pathlib import Path

import pytest

# helpers beside these tests, and beside those of searches, are imported by name
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tasks" / "sec_search"))

from sec_support import TINY_SELECTION
from service_doubles import ScriptedService, small_experiment, small_task

from harness.cards import Experiment
from harness.tasks.gsm8k import Task
from harness.tasks.sec_search import SearchTask, synthetic_task
from harness.tasks.sec_search.synthetic import TINY
from harness.training.word_problems import ProblemAdapter


@pytest.fixture(scope="session")
def small() -> Experiment:
    """Two arms of 5 steps with 8 rollouts each."""
    return small_experiment()


@pytest.fixture(scope="session")
def words() -> Task:
    """60 train problems and 20 test problems."""
    return small_task()


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> SearchTask:
    """The tiny synthetic search task: 24 train and 8 test questions."""
    return synthetic_task(TINY, tmp_path_factory.mktemp("sec") / "tiny", TINY_SELECTION)


@pytest.fixture(scope="session")
def renderer(words: Task, small: Experiment) -> ProblemAdapter:
    """A adapter on a tokenizer of these problems."""
    from tinker_cookbook.renderers import get_renderer

    from harness.embedded.tokenizer import build_tokenizer

    tokenizer = build_tokenizer([p.question for p in words.train], min_count=2)
    training = small.registration.training
    return ProblemAdapter(get_renderer(training.renderer, tokenizer), training)


@pytest.fixture
def service(renderer: ProblemAdapter, words: Task) -> ScriptedService:
    """A scripted service that nobody has called yet."""
    return ScriptedService(renderer, words)
