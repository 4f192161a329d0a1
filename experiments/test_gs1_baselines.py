"""Does the kernel help here at all? The question before the GPU bill, asked of rollouts offline.

Scores baselines by B_eff, our definition: on real prompts with simulated rewards (GSM8K with
--gsm8k-dir, else the embedded word problems), and on the rollouts that a run of a card has saved.
Reports and plots go to <runs-dir>/baselines. Decides nothing: a report is no verdict.
"""

import sys
from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.errors import DataError
from harness.lab import baselines, plot, pools
from harness.methods import fit_tfidf
from harness.methods.pool import Design
from harness.plugin.options import SETTINGS
from harness.protocol.data import experiment_task

CARDS = Path(__file__).parent / "cards"
RUNS = {
    "gs1_vs_grpo_gsm8k_2b": 16,
    "gs1_vs_grpo_gsm8k_08b_softmax": 64,
    "gs1_vs_grpo_gsm8k_08b_cosine": 64,
}
"""Cards whose saved rollouts are scored, and the batch that half of a window can fill."""


@pytest.mark.parametrize("scale", ["embedded", "full"])
def test_simulated_rewards(scale, pytestconfig, capsys):
    """On 1,024 real prompts x 8 simulated rollouts every baseline has a score and an interval."""
    experiment, task, settings = opened("gs1_vs_grpo_gsm8k_2b", scale, pytestconfig)
    kernel, fitted = kernel_of(experiment, task)
    found = [
        baselines.compare(
            pools.simulated_pool(task.train, model, prompts=1024, rollouts=8, seed=0),
            kernel,
            fitted,
            Design(batch_size=64),
        )
        for model in pools.MODELS
    ]
    report(found, settings.runs_dir / "baselines" / f"simulated.{scale}", capsys)
    for comparison in found:
        # whatever the texts, the batch mean of rewards that spread beats no baseline
        scores = comparison.candidates
        assert scores["none"].headline.upper < scores[baselines.UNIFORM].headline.lower


@pytest.mark.parametrize("card", RUNS)
def test_saved_rollouts(card, pytestconfig, capsys):
    """The groups that a run has saved are scored at its start, middle and end."""
    experiment, task, settings = opened(card, settings_scale(pytestconfig), pytestconfig)
    kernel, fitted = kernel_of(experiment, task)
    arm = experiment.role("baseline")[0]
    try:
        records = pools.stored_records(experiment, arm, settings.runs_dir)
    except DataError as error:
        pytest.skip(str(error))
    questions = [problem.question for problem in task.train]
    found = [
        baselines.compare(pool, kernel, fitted, Design(batch_size=RUNS[card], passes=100))
        for pool in pools.saved_pools(experiment, arm, records, questions)
    ]
    report(found, settings.runs_dir / "baselines" / f"{card}.{experiment.scale.name}", capsys)
    assert [comparison.pool.name for comparison in found] == ["start", "middle", "end"]


def opened(card, scale, config):
    """The experiment, its data and the session's settings; skipped where there is no data."""
    settings = config.stash[SETTINGS]
    experiment = load_experiment(CARDS / f"{card}.json", scale)
    if experiment.scale.data == "gsm8k" and settings.gsm8k_dir is None:
        pytest.skip("no GSM8K files were given; add --gsm8k-dir or HARNESS_GSM8K_DIR")
    return experiment, experiment_task(experiment, settings.runs_dir, settings.gsm8k_dir), settings


def settings_scale(config):
    """The scale that the session was started with."""
    return config.stash[SETTINGS].scale


def kernel_of(experiment, task):
    """The registered kernel of the treatment, and TF-IDF fitted as the arm fits it."""
    kernel = experiment.role("treatment")[0].kernel
    return kernel, fit_tfidf([problem.question for problem in task.train], kernel)


def report(found, path, capsys):
    """Write text and picture, and show the text."""
    picture = plot.plot(found, path.with_name(f"{path.name}.png"), path.name)
    text = "\n\n".join("\n".join(baselines.lines(comparison)) for comparison in found)
    path.with_name(f"{path.name}.txt").write_text(f"{text}\n")
    with capsys.disabled():
        sys.stdout.write(f"\n\n{text}\nplot: {picture}\n")
