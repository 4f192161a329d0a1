"""Does the kernel help here at all? The question before the GPU bill, asked of rollouts offline.

Scores baselines by B_eff, our definition: on real prompts with simulated rewards (the embedded word
problems, and GSM8K with --gsm8k-dir), and on the rollouts that a run of a card has saved. Reports
and plots go to <runs-dir>/baselines. Decides nothing: a report is no verdict.
"""

from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.lab import questions
from harness.lab.baselines import UNIFORM
from harness.lab.pools import NothingStored
from harness.plugin.options import SETTINGS
from harness.protocol.data import experiment_task

CARDS = Path(__file__).parent / "cards"
GS1, EARLIER = "gs1_vs_grpo_gsm8k_2b", "gs1_vs_grpo_gsm8k_08b"


@pytest.fixture(name="ask")
def _ask(pytestconfig, capsys):
    """Ask a question of a card at a scale, and show the report; skipped where there is no data."""
    settings = pytestconfig.stash[SETTINGS]

    def ask(card, scale, name, question):
        experiment = load_experiment(CARDS / f"{card}.json", scale)
        if experiment.scale.data == "gsm8k" and settings.gsm8k_dir is None:
            pytest.skip("no GSM8K files were given; add --gsm8k-dir or HARNESS_GSM8K_DIR")
        task = experiment_task(experiment, settings.runs_dir, settings.gsm8k_dir)
        try:
            found = question(experiment, task, settings.runs_dir)
        except NothingStored as error:
            pytest.skip(str(error))
        path = settings.runs_dir / "baselines" / f"{name}.{experiment.scale.name}"
        text = questions.report(found, path)
        with capsys.disabled():
            print(f"\n\n{text}")  # noqa: T201  the report is for whoever ran this
        return found

    return ask


@pytest.mark.parametrize("scale", ["embedded", "full"])
def test_simulated_rewards(ask, scale):
    """Every baseline has a score and an interval; without any baseline it is the lowest."""
    found = ask(
        GS1, scale, "simulated", lambda experiment, task, _: questions.simulated(experiment, task)
    )
    for comparison in found:
        scores = comparison.candidates
        assert scores["none"].headline.upper < scores[UNIFORM].headline.lower


@pytest.mark.parametrize("card", [GS1, f"{EARLIER}_softmax", f"{EARLIER}_cosine"])
def test_saved_rollouts(ask, card, pytestconfig):
    """The groups that a run has saved are scored at its start, middle and end."""
    found = ask(card, pytestconfig.stash[SETTINGS].scale, card, questions.saved)
    assert [comparison.pool.name for comparison in found] == ["start", "middle", "end"]
