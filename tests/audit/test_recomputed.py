import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

from lagged import record, sent

from harness.audit.advantages import Again
from harness.audit.recomputed import loss_and_surrogate, staleness_figures
from harness.cards import Arm
from harness.components import StepRewards
from harness.methods import advantages, loss_and_gradient
from harness.records import learner_logprobs_of, logprobs_of, tokens_of
from harness.training.staleness_metrics import staleness_metrics

CONFIGS = {"group_std": {"ddof": 1, "eps": 1e-6}, "tail_quantile": {"quantile": 0.75}}
GRADED = ("group_mean", "group_std", "rloo", "tailrl", "tail_quantile")


def arm_of(estimator="maxrl", loss="ppo", lag=4, seed=0):
    """A small arm."""
    clip = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    return Arm(
        name="a",
        role="a",
        seed=seed,
        group_size=8,
        groups_per_batch=6,
        steps=9,
        learning_rate=0.1,
        estimator=estimator,
        kernel=None,
        loss=loss,
        loss_config=clip if loss == "ppo" else {},
        lag=lag,
        estimator_config=CONFIGS.get(estimator, {}),
    )


def reference_advantages(arm, rewards):
    """What the estimator's declared reference makes of one group."""
    given = StepRewards(0, ["?"], [rewards])
    return arm.declared.reference(given, arm.settings).advantages_P_G[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("estimator", ["maxrl", *GRADED])
def test_two_computations_of_every_figure_agree(estimator, seed):
    """The metrics of the loop and those recomputed token by token are the same names and values."""
    arm = arm_of(estimator, seed=seed)
    made = record(arm, 7)
    logged = staleness_metrics("here", arm, made["groups"], *sent(made["groups"]))

    assert logged == pytest.approx(staleness_figures(made, 0.8, 1.2), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("estimator", GRADED)
@pytest.mark.parametrize("seed", range(5))
def test_two_computations_of_graded_advantages_agree(estimator, seed):
    """Ties, negative rewards and equal groups included."""
    generator = np.random.Generator(np.random.PCG64(seed))
    arm = arm_of(estimator)
    for rewards in (
        generator.normal(size=8).tolist(),
        generator.choice([0.0, 0.3, 1.0], size=8).tolist(),
        [-0.1] * 8,
    ):
        estimate = getattr(advantages, estimator)([rewards], **CONFIGS.get(estimator, {}))[0]
        assert reference_advantages(arm, rewards) == pytest.approx(estimate.tolist(), abs=1e-9)


@pytest.mark.parametrize("k", range(9))
def test_maxrl_advantages_agree_at_every_number_of_successes(k):
    """N/k - 1, -1, and 0 where k = 0."""
    rewards = [1.0] * k + [0.0] * (8 - k)

    expected = advantages.maxrl([rewards])[0].tolist()
    assert reference_advantages(arm_of(), rewards) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss", ["ppo", "importance_sampling"])
def test_loss_and_surrogate_are_those_of_the_reference(loss):
    """The value is the reference's, the surrogate its gradient times the log-probs."""
    arm = arm_of(loss=loss)
    made = record(arm, 7)
    rollouts = [rollout for group in made["groups"] for rollout in group["rollouts"]]
    learner = [x for rollout in rollouts for x in learner_logprobs_of(rollout)]
    behaviour = [x for rollout in rollouts for x in logprobs_of(rollout)]
    weights = [float(np.float32(each["advantage"])) for each in rollouts for _ in tokens_of(each)]
    reference = loss_and_gradient(loss, learner, behaviour, weights, dict(arm.loss_config))

    value, surrogate, scale = loss_and_surrogate(arm, made)

    assert len(rollouts) == 48
    assert value == pytest.approx(reference.value, rel=1e-12)
    assert surrogate == pytest.approx(float(reference.gradient_T @ np.asarray(learner)), rel=1e-12)
    assert scale > abs(value)


def test_a_changed_advantage_is_seen():
    """By the reference and by the declared function, of that rollout alone."""
    arm = arm_of()
    made = record(arm, 3)
    made["groups"][0]["rollouts"][2]["advantage"] += 0.25

    found = list(Again.of(arm, []).differences(made, None))

    assert len(found) == 2 * 48
    others = [each for each in found if each.size > 1e-9]
    assert [each.size for each in others] == pytest.approx([0.25, 0.25])
    assert {each.prompt for each in others} == {made["groups"][0]["prompt"]}
