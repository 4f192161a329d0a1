"""Rollouts eight updates old lose TailRL more to the clip, and to held-out F4, than Dr. GRPO.

A 2x2 of advantage estimator and lag on an agent that searches filings by tools for up to twelve
turns: TailRL and Dr. GRPO, each on fresh rollouts and on those of the weights eight updates
earlier, with one clipped loss, model, data order and learning rate. Where lag 8 is not clearly
staler than lag 0 the comparison does not count.
"""

import pytest

CARD = "tailrl_lag8_sec_search_4b"


@pytest.mark.preflight
def test_preflight(preflight):
    """Nothing that can be known before training speaks against the run."""
    assert preflight.ok, preflight.message


@pytest.mark.gate
def test_gate(gate):
    """Lag, dropped groups, turns and advantages are as registered; fresh rollouts clip nothing."""
    assert gate.ok, gate.sentence


def test_arm(arm):
    """The arm took every step that the card plans, on as many rollouts."""
    assert arm.steps == arm.planned_steps
    assert arm.rollouts == arm.planned_rollouts


@pytest.mark.decision
def test_lag_hits_tailrl_harder_than_dr_grpo(criterion):
    """In clipped advantage mass by half, and in F4 by 0.05, both together."""
    if criterion.inconclusive:
        raise pytest.xfail.Exception(criterion.sentence)
    assert criterion.validated, criterion.sentence
