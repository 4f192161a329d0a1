"""The page on components can be followed word for word."""

import os
import re

import pytest
from mini import ROOT

from harness.audit.gates import METRICS
from harness.cards import load_experiment
from harness.protocol.run import CardRun

PAGE = (ROOT / "docs" / "components.md").read_text()
FILES = re.compile(r"`(experiments/[\w/.]+)`[^`]*?:\n\n```\w+\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Its files in a folder of their own."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in FILES.findall(PAGE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_its_files_are_short(written):
    """Component, card, registration and test: the estimator under 40 lines, all under 100."""
    names = [name for name, _ in FILES.findall(PAGE)]
    lines = {name: len((written / name).read_text().splitlines()) for name in names}

    assert sorted(names) == [
        "experiments/cards/mine.json",
        "experiments/cards/mine.registration.json",
        "experiments/my_baseline.py",
        "experiments/test_mine.py",
    ]
    assert lines["experiments/my_baseline.py"] < 40
    assert sum(lines.values()) - lines["experiments/my_baseline.py"] < 80


@pytest.mark.parametrize("scale", ["embedded", "full"])
def test_its_files_are_an_experiment(written, scale):
    """At both scales: the card's words, and what it inherits."""
    experiment = load_experiment(written / "experiments" / "cards" / "mine.json", scale)

    assert experiment.unverified == ()
    assert {arm.name: arm.rollouts_per_step for arm in experiment.arms} == {
        "grpo": 64,
        "running": 64,
    }
    assert all(check.metric in METRICS for check in experiment.gates)


@pytest.mark.parametrize("preflight", ["pins", "reference_correctness", "forecast", "audit"])
def test_its_preflights_are_green(written, preflight):
    """Those that need no service, as the page says: nothing has to be accepted."""
    card = written / "experiments" / "cards" / "mine.json"
    experiment = load_experiment(card)
    run = CardRun(experiment, card, written / "runs", False, None, os.getpid(), "a")
    try:
        finding = run.preflight(preflight)
    finally:
        run.close()

    assert finding.ok, finding.message
