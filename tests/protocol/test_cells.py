"""Criteria over the cells of a design: seeds, steps, items, and what only supports."""

from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.decisions import Verdict
from harness.errors import RunError
from harness.protocol.arms import ArmKeeper

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
FRACTION, LOW = "staleness/mass_fraction", "staleness/mass_low_minus_high"


@pytest.fixture(name="mass")
def _mass():
    return load_experiment(CARDS / "maxrl_lag4_clip_mass_gsm8k_08b.json", "embedded")


@pytest.fixture(name="stored")
def _stored(monkeypatch, words):
    """What the store holds: `fractions` by arm, `right` by arm (share of samples that is right)."""
    state = {"fractions": {}, "right": {}}

    def figures(_keeper, arm):
        value = state["fractions"].get(arm.name, 0.01)
        metrics = {FRACTION: value, LOW: value / 2}
        return [
            {"step": step, "metrics": {**metrics, **_report(step)}} for step in range(arm.steps)
        ]

    def rows(_keeper, arm):
        flags = [i < 8 * state["right"].get(getattr(arm, "name", "base"), 0.5) for i in range(8)]
        return [{"item_id": p.id, "correct": flags[0], "correct_S": flags} for p in words.test]

    # after `fakes`, whose small split is too short for these arms: nothing is trained here
    monkeypatch.setattr("harness.protocol.run.refuse_too_few_prompts", lambda *_: None)
    monkeypatch.setattr(ArmKeeper, "figures", figures)
    monkeypatch.setattr(ArmKeeper, "item_rows", rows)
    monkeypatch.setattr(ArmKeeper, "training_notes", lambda *_: ())
    # rows of flags alone, and no pilot: whether they make sense is asked elsewhere
    monkeypatch.setattr(ArmKeeper, "pilot_evidence", lambda _: {})
    monkeypatch.setattr("harness.protocol.decider.sense.doubts", lambda *_: [])
    return state


def _report(step):
    """The figures that a reader is shown beside."""
    names = ("kl_k3", "ratio_mean", "ratio_p95", "clip_raw", "clip_active")
    return {f"staleness/{name}": 0.1 * step for name in names}


def decided(run):
    """The outcome of every criterion."""
    return {name: outcome.verdict for name, outcome in run.decision().outcomes.items()}


def lost(t0, t1, b0, b1):
    """Clipped fractions of both seeds of both lag-4 cells."""
    return {
        "maxrl_lag4_seed0": t0, "maxrl_lag4_seed1": t1,
        "grpo_lag4_seed0": b0, "grpo_lag4_seed1": b1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fractions", "expected"),
    [
        (lost(0.30, 0.31, 0.19, 0.20), ("VALIDATED", "VALIDATED", "VALIDATED")),
        (lost(0.30, 0.38, 0.19, 0.20), ("VALIDATED", "INCONCLUSIVE", "VALIDATED")),
        (lost(0.26, 0.26, 0.20, 0.20), ("INCONCLUSIVE", "VALIDATED", "VALIDATED")),
        (lost(0.21, 0.21, 0.20, 0.20), ("REFUTED", "VALIDATED", "VALIDATED")),
        (lost(0.20, 0.20, 0.21, 0.21), ("REFUTED", "REFUTED", "INCONCLUSIVE")),
        (lost(0.0, 0.0, 0.0, 0.0), ("INVALID", "INVALID", "INVALID")),
    ],
)
def test_the_clip_mass_rule_over_two_seeds(fakes, stored, mass, fractions, expected):
    """Ratio, seed range and low k, each from one number a seed: the mean of the named steps."""
    stored["fractions"] = fractions

    assert tuple(decided(fakes.run(experiment=mass)).values()) == expected


@pytest.mark.parametrize("right", [0.0, 0.25, 1.0])
def test_accuracy_alone_cannot_validate(fakes, stored, mass, right):
    """Whatever pass@8 does, the criteria say what the clip says; the drop is only shown."""
    stored["fractions"] = lost(0.20, 0.20, 0.20, 0.20)
    stored["right"] = {
        "maxrl_lag0_seed0": 1.0, "maxrl_lag0_seed1": 1.0,
        "maxrl_lag4_seed0": right, "maxrl_lag4_seed1": right,
    }  # fmt: skip
    run = fakes.run(experiment=mass)

    assert decided(run)["clipped_mass_ratio"] is Verdict.REFUTED
    shown = [line for line in run.diagnostics() if "supporting, decides nothing" in line]
    assert len(shown) == 2
    assert ("VALIDATED: pass@8" in shown[0]) is (right == 0.0)


def test_items_are_averaged_over_seeds(fakes, stored, mass, words):
    """Two seeds of a role give one score an item: n stays the number of items."""
    stored["right"] = {"maxrl_lag0_seed0": 1.0, "maxrl_lag0_seed1": 0.0}
    run = fakes.run(experiment=mass)
    support, *_ = run._decider._supporting

    outcome = run._decider._decide(support, 1)

    assert outcome.n == len(words.test)
    assert outcome.estimate == pytest.approx(-0.5)


def test_a_run_whose_lag_was_not_executed_gives_no_numbers(fakes, mass, monkeypatch):
    """Every step is held to its lag before a criterion reads it, not the pilot's alone."""
    from harness.protocol import arms

    arm = mass.arm("maxrl_lag4_seed0")
    fingerprints = [
        {"sampler_T": [-1.0 - 0.1 * s], "learner_T": [-1.0 - 0.1 * s]} for s in range(24)
    ]
    records = [
        {"step": s, "sampled_version": max(0, s - 4), "fingerprints": fingerprints[s]}
        for s in range(24)
    ]
    monkeypatch.setattr(arms, "_records", lambda *_: records)

    with pytest.raises(RunError, match="step 1 sampled from weights 0 updates old, exactly 1"):
        fakes.keeper(experiment=mass).figures(arm)
