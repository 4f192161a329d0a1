"""An experiment that brings its own estimator, kernel, gate, preflight and decision method."""

import os
import shutil
from pathlib import Path

import own_experiment
import pytest
import stored
from own_experiment import ARM, source
from sessions import Session, run, start_and_stop_at

from harness.cards import load_experiment
from harness.errors import RunError
from harness.protocol.run import CardRun

EXPERIMENT = "test_mine.py"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Session:
    """A run of it that nothing disturbs."""
    folder = tmp_path_factory.mktemp("mine")
    _, scale = own_experiment.build(folder)
    session = run(
        folder / "session", scale=scale, runs=folder / "runs", project=folder, experiment=EXPERIMENT
    )
    assert session.exit in (0, 1), session.output
    return session


def project_of(session: Session, folder: Path, **files: str) -> dict[str, object]:
    """A copy of a finished project with its arms, some of its components edited.

    Without the record: what was registered there would bind.
    """
    _, scale = own_experiment.build(folder, **files)
    bound = shutil.ignore_patterns("record.*", "registered")
    shutil.copytree(session.runs, folder / "runs", ignore=bound)
    return {
        "scale": scale, "runs": folder / "runs", "project": folder, "experiment": EXPERIMENT,
    }  # fmt: skip


def test_it_runs_to_a_verdict(finished):
    """Every component of its own is asked, by name, and the rule is the method of its own."""
    verdict = finished.verdict

    assert verdict["verdict"] in ("VALIDATED", "REFUTED", "INCONCLUSIVE"), finished.output
    assert {p["id"]: p["outcome"] for p in verdict["preflights"]}["lengths_differ"] == "passed"
    gates = {gate["metric"]: gate for gate in verdict["gates"]}
    assert gates["baseline_spread"]["ok"]
    assert gates["baseline_spread"]["value"] > 1e-3
    assert gates["staleness/kl_k3"]["ok"]
    (criterion,) = verdict["criteria"]
    assert criterion["lower"] < criterion["estimate"] < criterion["upper"]
    assert verdict["unverified"] == []


def test_a_killed_run_goes_on_with_the_state_of_its_estimator(finished, tmp_path):
    """Killed behind a checkpoint and resumed, it takes every step to the same rows."""
    _, scale = own_experiment.build(tmp_path)
    runs = tmp_path / "runs"
    options = {"scale": scale, "runs": runs, "project": tmp_path, "experiment": EXPERIMENT}
    killed = start_and_stop_at(tmp_path / "killed", f"{ARM}:5", **options)
    killed.kill(group=True)
    killed.end_of_processes()

    resumed = run(tmp_path / "resumed", **options)

    assert resumed.verdict["verdict"] == finished.verdict["verdict"], resumed.output
    assert stored.attempts(runs)[ARM] > stored.attempts(finished.runs)[ARM]
    assert stored.training(runs) == stored.training(finished.runs)
    assert stored.rows(runs) == stored.rows(finished.runs)


def test_an_edited_gate_retrains_nothing_and_one_that_cant_fail_is_red(finished, tmp_path):
    """The pilot is measured anew; a constant passes on whatever the pilot holds."""
    edited = source("checks").replace(
        "spreads.append(max(baselines) - min(baselines))", "spreads.append(0.5)"
    )
    options = project_of(finished, tmp_path, checks=edited)
    before = {arm: stored.step_files(tmp_path / "runs", arm) for arm in own_experiment.mini.ARMS}

    session = run(tmp_path / "session", "-k", "baseline_spread", **options)

    assert session.exit == 1
    assert "gate baseline_spread: passes on 23 of 23 pilots that were changed" in session.output
    after = {arm: stored.step_files(tmp_path / "runs", arm) for arm in own_experiment.mini.ARMS}
    assert after == before


def test_a_component_edited_after_the_first_step_is_named(finished, tmp_path):
    """With the record the same edit is refused before a step is taken, by the method's name."""
    edited = source("checks").replace("half *= float(", "half *= 0.5 * float(")
    test_file, scale = own_experiment.build(tmp_path, checks=edited)
    card = test_file.parent / "cards" / f"{own_experiment.mini.CARD}.json"
    shutil.copytree(finished.runs, tmp_path / "runs")
    experiment = load_experiment(card, str(scale))
    again = CardRun(experiment, card, tmp_path / "runs", False, None, os.getpid(), "again")

    with pytest.raises(RunError, match=r"components\.decision method paired_normal: registered"):
        again.pilot()
    again.close()
