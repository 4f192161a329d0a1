"""A project of its own for each test: the real experiment file over a scripted run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import harness.decisions  # noqa: F401  scipy loads once a process, and pytester forgets imports

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parents[1] / "experiments"

CONFTEST = """
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import errors

sys.path.insert(0, {here!r})
import doubles

pytest_plugins = ["harness.plugin"]


def pytest_configure():
    from harness.plugin import progress

    progress._LOOK_EVERY_S = 0.05  # as often as there is news


@pytest.fixture(scope="session")
def open_card():
    return doubles.opener(doubles.Script({script}), Path({calls!r}))
"""

INI = """
[pytest]
strict = true
junit_family = xunit1
addopts = -ra --runs-dir=runs -p no:cacheprovider -p no:hypothesispytest -p no:anyio
filterwarnings = error
"""


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], pytest.Pytester]:
    """Lay out the GS1 experiment over a run scripted by the arguments of `doubles.Script`."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def lay_out(script: str = "") -> pytest.Pytester:
        calls = str(pytester.path / "calls")
        pytester.makeini(INI)
        pytester.makeconftest(CONFTEST.format(here=str(HERE), script=script, calls=calls))
        cards = pytester.path / "experiments" / "cards"
        cards.mkdir(parents=True)
        for card in (EXPERIMENTS / "cards").glob("gs1_vs_grpo_gsm8k_2b*.json"):
            shutil.copy(card, cards)
        shutil.copy(EXPERIMENTS / "test_gs1.py", cards.parent)
        return pytester

    return lay_out
