"""At lag 4 the PPO clip takes 1.5 times as much advantage mass from MaxRL as from GRPO.

A 2x2 of objective and lag with two seeds a cell: MaxRL and GRPO (divided by the group's standard
deviation), on fresh rollouts and on those of the weights four updates earlier. What is compared is
the |A|-weighted share of tokens that the clip silences, and whether hard groups lose most of it.
"""

import pytest

CARD = "maxrl_lag4_clip_mass_gsm8k_08b"


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
def test_maxrl_loses_more_to_the_clip_than_grpo(criterion):
    """By the ratio, beyond seed noise, and in groups with few successes: all three together."""
    if criterion.inconclusive:
        raise pytest.xfail.Exception(criterion.sentence)
    assert criterion.validated, criterion.sentence
