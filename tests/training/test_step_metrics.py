import math

import pytest
from rollouts import a_group, a_rollout, a_turn

from harness.errors import RunError
from harness.training.step_metrics import GRAD_NORM, gap_note, step_metrics, training_note


def pair(rewards, logprobs, learner, stops=("stop", "stop")):
    """A group of two rollouts of one or two tokens."""
    rows = zip(rewards, logprobs, learner, stops, strict=True)
    return a_group(
        0,
        [
            a_rollout(
                reward,
                a_turn([1] * len(q), q, p, stop=stop),
                correct=float(reward >= 0.9),
                format=float(reward >= 0.0),
            )
            for reward, q, p, stop in rows
        ],
    )


GROUPS = [
    pair([1.0, 0.0], [[-1.0, -2.0], [-3.0]], [[-1.5, -2.0], [-2.0]]),
    pair([-0.1, -0.1], [[-2.0], [-2.0]], [[-2.0], [-2.0]], ("stop", "length")),
]


def test_figures_are_means_over_rollouts_and_tokens():
    """Worked by hand: 4 rollouts, 5 action tokens, gaps of 0.5, 0, -1, 0 and 0 nats."""
    metrics = step_metrics("here", GROUPS, {"loss:sum": 2.0}, {"grad_norm": 3.0})

    assert metrics == pytest.approx(
        {
            "reward": 0.2,
            "correct": 0.25,
            "format": 0.5,
            "stopped": 0.75,
            "zero_variance_groups": 0.5,
            "rollouts": 4.0,
            "tokens": 5.0,
            "kl_behaviour_learner": -0.1,
            "max_abs_logprob_gap": 1.0,
            "entropy": 2.0,
            "service/loss:sum": 2.0,
            "service/grad_norm": 3.0,
        }
    )


def test_scores_of_a_task_are_figures_by_its_own_names():
    """Means over rollouts; a task that grades neither answer nor format reports neither."""
    scored = [a_group(0, [a_rollout(x, turns=1.0, depth=2 * x) for x in (0.0, 1.0, 2.0)])]
    metrics = step_metrics("here", scored, {}, {})

    assert (metrics["episode/turns"], metrics["episode/depth"]) == (1.0, 2.0)
    assert not {"correct", "format"} & metrics.keys()


def test_a_task_that_scores_episodes_by_different_names_is_refused():
    """A mean over some of the rollouts is not given as one over all."""
    uneven = [a_group(0, [a_rollout(0.0, depth=1.0), a_rollout(0.0, width=1.0)])]
    with pytest.raises(RunError, match="here: one rollout has the scores width, another depth"):
        step_metrics("here", uneven, {}, {})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_is_an_error(bad):
    """Whatever the service reports has to be a number."""
    with pytest.raises(RunError, match="arm a: step 3: metric service/grad_norm is"):
        step_metrics("arm a: step 3", GROUPS, {}, {"grad_norm": bad})


def test_rows_of_different_lengths_are_refused():
    """A learner's row that is cut short is no smaller mean."""
    with pytest.raises(ValueError, match="shorter"):
        step_metrics("here", [pair([1.0, 0.0], [[-1.0], [-1.0]], [[-1.0], []])], {}, {})


def test_note_gives_the_course_of_reward_and_the_variance_of_gradient_norms():
    """Worked by hand: rewards 0 to 3, norms 1, 3, 5, 7 of mean 4 and variance 20/3."""
    records = [{"metrics": {"reward": float(t), GRAD_NORM: 1.0 + 2 * t}} for t in range(4)]

    note = training_note("arm", records)
    assert "train reward 0.5000 over the first 2 steps, 2.5000 over the last" in note
    assert "gradient norm mean 4, variance over 4 steps 6.6667" in note


def test_note_says_where_the_service_reports_no_norm():
    """A variance over some of the steps is not given as one over all."""
    records = [{"metrics": {"reward": 1.0, GRAD_NORM: 1.0}}, {"metrics": {"reward": 1.0}}]

    assert "reports no gradient norm for every step" in training_note("arm", records)


def test_note_says_how_far_sampler_and_learner_are_apart():
    """The largest gap of any step."""
    records = [{"metrics": {"max_abs_logprob_gap": gap}} for gap in (0.001, 0.0123, 0.0)]

    assert "differ by at most 0.012 nats" in gap_note("arm", records)
