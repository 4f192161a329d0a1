"""A tiny synthetic task, prepared once."""

import sys
from pathlib import Path

import pytest

from harness.tasks.sec_search import SearchTask, synthetic_task
from harness.tasks.sec_search.synthetic import TINY

# these tests share helpers that are no fixtures
sys.path.insert(0, str(Path(__file__).parent))

from sec_support import TINY_SELECTION


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> SearchTask:
    """The tiny synthetic task: 12 companies, 720 chunks, 24 train and 8 test questions."""
    return synthetic_task(TINY, tmp_path_factory.mktemp("sec") / "tiny", TINY_SELECTION)
