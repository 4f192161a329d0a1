"""Rollouts four updates old cost TailRL more accuracy than GRPO, and clip more of its tokens.

A 2x2 of objective and lag: a TailRL that credits only rollouts above their group's 75th percentile
and GRPO, each on fresh rollouts and on those of the weights four updates earlier, with the clipped
loss computed by this client. Accuracy and clip fraction have to agree.
"""

import pytest

CARD = "tailrl_lag4_sensitivity_gsm8k_08b"


@pytest.mark.preflight
def test_preflight(preflight):
    """Nothing that can be known before training speaks against the run."""
    assert preflight.ok, preflight.message


@pytest.mark.gate
def test_gate(gate):
    """Fresh rollouts clip nothing, stale ones do, and the figures say what happened."""
    assert gate.ok, gate.sentence


def test_arm(arm):
    """The arm took every step that the card plans, on as many rollouts."""
    assert arm.steps == arm.planned_steps
    assert arm.rollouts == arm.planned_rollouts


@pytest.mark.decision
def test_staleness_costs_tailrl_more_than_grpo(criterion):
    """In accuracy by 3 points and in clipped tokens by half: neither alone is enough."""
    if criterion.inconclusive:
        raise pytest.xfail.Exception(criterion.sentence)
    assert criterion.validated, criterion.sentence
