"""A running mean of rewards does not fall far behind GRPO: the whole experiment in one file."""

import pytest

from harness import Estimate, StepRewards, estimator, inconclusive

CARD = {
    "card": {
        "title": "A running mean of rewards against GRPO",
        "hypothesis": "One rollout a prompt and a running mean are not 30 points below GRPO.",
        "batch_size": 64,
        "steps": 12,
        "dataset": {"n_examples": 1000},
        "eval": {"n_examples": 200},
        "decision_rule": {
            "estimand": "difference in exact match of these checkpoints",
            "criteria": [
                {
                    "id": "not_far_below",
                    "metric": "accuracy",
                    "weights": {"treatment": 1, "baseline": -1},
                    "bounds": [0, 1],
                    "margin": -0.3,
                }
            ],
        },
    },
    "registration": {
        "inherits": "word_problems_1",
        "components": ["test_whole.py"],
        "training": {"pilot_steps": 2, "checkpoint_every": 2},
        "arms": [
            {
                "name": "grpo",
                "role": "baseline",
                "estimator": "group_mean",
                "schedule": {"group_size": 4},
            },
            {
                "name": "running",
                "role": "treatment",
                "estimator": "running_mean",
                "schedule": {"group_size": 1},
            },
        ],
    },
}


@estimator(group_size=(1, 1), leave_one_out=True)
def running_mean(step: StepRewards, _) -> Estimate:
    """b = the mean reward of all steps before."""
    rewards = [reward for (reward,) in step.rewards_P_G]
    total, count = step.state or [0.0, 0]
    mean = total / max(count, 1)
    return Estimate([[r - mean] for r in rewards], [total + sum(rewards), count + len(rewards)])


@pytest.mark.gate
def test_rewards_vary(pilot):
    """Some rollouts of the pilot are right and some are wrong."""
    groups = [group for record in pilot["running"] for group in record["groups"]]
    assert len({rollout["reward"] for group in groups for rollout in group["rollouts"]}) > 1


@pytest.mark.decision
def test_no_ruin(rows):
    """The treatment answers at least half as many items as the base model."""
    right = {policy: sum(scores.values()) for policy, scores in rows.items()}
    if right["base"] < 5:
        inconclusive(f"the base model answers {right['base']:.0f} items alone")
    assert right["running"] >= 0.5 * right["base"]


@pytest.mark.decision
def test_criterion(criterion):
    """The registered rule says so."""
    assert criterion.validated, criterion.sentence
