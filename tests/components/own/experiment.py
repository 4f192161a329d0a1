"""A running mean of rewards does no worse than GRPO by more than 20 points."""

import pytest

CARD = "gs1_vs_grpo_gsm8k_2b"


@pytest.mark.preflight
def test_preflight(preflight):
    """Nothing that can be known before training speaks against the run."""
    assert preflight.ok, preflight.message


@pytest.mark.gate
def test_gate(gate):
    """In the first steps each arm did what the card says it does."""
    assert gate.ok, gate.sentence


def test_arm(arm):
    """The arm took every step that the card plans."""
    assert arm.steps == arm.planned_steps


@pytest.mark.decision
def test_not_inferior(criterion):
    """The registered rule says so."""
    if criterion.inconclusive:
        raise pytest.xfail.Exception(criterion.sentence)
    assert criterion.validated, criterion.sentence
