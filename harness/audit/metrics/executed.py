"""Gates of every arm: how many rollouts a step was made of, their rewards, and the model."""

import math

from harness.audit.metrics.metric import Range, Values, at_least, gate_metric
from harness.audit.pilot import Executed, groups, step_rewards
from harness.cards import Experiment
from harness.records import rewards_of
from harness.tasks.sec_search.reward import EMPTY_REWARD

ROLLOUTS = "rollouts_per_step_both_arms"
MODEL = "executed_base_model"


def worst_reward(experiment: Experiment) -> float:
    """The least reward of an episode: a wrong answer in a wrong format, or nothing curated."""
    registration = experiment.registration
    if registration.search is not None:
        return EMPTY_REWARD
    return -registration.training.format_coefficient


@gate_metric(
    ROLLOUTS,
    unit="rollouts a step",
    range=at_least(1, whole=True),
    remedy="make group_size x groups_per_batch the registered number in both arms, and look for "
    "rollouts that were lost or sampled twice",
)
def rollouts(pilot: Executed) -> Values:
    """Rollouts of each step."""
    return [float(len(step_rewards(record))) for _, records in pilot.arms for record in records]


@gate_metric(
    "batch_mean_reward_pilot",
    unit="of reward",
    range=lambda experiment: Range(worst_reward(experiment), 1.0),
    remedy="advantages vanish where nothing or everything is right: choose easier or harder "
    "prompts, or another base model",
)
def mean_rewards(pilot: Executed) -> Values:
    """The mean reward of each arm: a mean over all could hide one that has nothing to learn."""
    rewards = [
        [reward for group in groups(records) for reward in rewards_of(group)]
        for _, records in pilot.arms
    ]
    return [math.fsum(row) / len(row) for row in rewards]


@gate_metric(MODEL, unit="as model names", range=None, remedy="train the model that the card names")
def models(pilot: Executed) -> Values:
    """The model of each step."""
    return [record["model"] for _, records in pilot.arms for record in records]


METRICS = (rollouts, mean_rewards, models)
