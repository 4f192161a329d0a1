"""GS1 is no more than 2 points below GRPO on GSM8K and 3 above the base model, at equal rollouts.

GS1 centres each of 128 rewards a step on those of similar prompts, weighed by max(0, cos). A third
arm with uniform weights tells the kernel from the group size and decides nothing.
"""

import pytest

CARD = "gs1_vs_grpo_gsm8k_08b_cosine"


@pytest.mark.preflight
def test_preflight(preflight):
    """Nothing that can be known before training speaks against the run."""
    assert preflight.ok, preflight.message


@pytest.mark.gate
def test_gate(gate):
    """In the first steps each arm did what the card says it does."""
    assert gate.ok, gate.sentence


def test_arm(arm):
    """The arm took every step that the card plans, on as many rollouts."""
    assert arm.steps == arm.planned_steps
    assert arm.rollouts == arm.planned_rollouts


@pytest.mark.decision
def test_gs1_is_not_inferior_to_grpo(criterion):
    """The registered rule says so; what it can't tell apart is not a failure."""
    if criterion.inconclusive:
        raise pytest.xfail.Exception(criterion.sentence)
    assert criterion.validated, criterion.sentence
