import dataclasses
import math

import numpy as np
import pytest
from service_doubles import GRPO, GS1

from harness.errors import CardError, RunError
from harness.methods import kernels
from harness.training.estimators import estimator, refuse_bad_rewards


@pytest.fixture
def questions(words):
    """What the kernel is fitted on."""
    return [problem.question for problem in words.train]


def test_group_mean_centres_within_groups(small, words, questions):
    """GRPO: reward minus the mean of its group, not divided by anything; it has no kernel."""
    estimate = estimator(small.arm(GRPO), questions).estimate(
        words.train[:2], [[1.0, 0.0], [-0.1, -0.1]]
    )

    assert [row.tolist() for row in estimate.advantages_P_G] == [[0.5, -0.5], [0.0, 0.0]]
    assert estimate.kernel is None


def test_gs1_centres_on_similar_prompts(small, words, questions):
    """GS1: r_i minus sum_j w_ij r_j with softmax weights of the question's TF-IDF cosines."""
    arm, batch = small.arm(GS1), words.train[:6]
    rewards = [1.0, 0.0, -0.1, 1.0, 0.0, 0.9]
    fitted = kernels.fit_tfidf(questions, arm.kernel)
    cosines = fitted.similarity([problem.question for problem in batch])
    scaled = np.exp(cosines / arm.kernel.tau)
    np.fill_diagonal(scaled, 0.0)
    baselines = (scaled / scaled.sum(axis=1, keepdims=True)) @ rewards

    estimate = estimator(arm, questions).estimate(batch, [[reward] for reward in rewards])

    got = [float(row[0]) for row in estimate.advantages_P_G]
    assert got == pytest.approx((rewards - baselines).tolist(), abs=1e-12)
    assert estimate.kernel["baselines_P"] == pytest.approx(baselines.tolist(), abs=1e-12)
    assert all(1.0 <= n <= 5.0 for n in estimate.kernel["contributors_P"])


def test_gs1_never_looks_at_its_own_reward(small, words, questions):
    """Changing r_0 by 5 changes A_0 by 5: the baseline of a rollout does not see it."""
    fitted, batch = estimator(small.arm(GS1), questions), words.train[:4]
    low = fitted.estimate(batch, [[0.0], [1.0], [0.0], [1.0]])
    high = fitted.estimate(batch, [[5.0], [1.0], [0.0], [1.0]])

    assert high.advantages_P_G[0] - low.advantages_P_G[0] == pytest.approx(5.0)
    assert high.kernel["baselines_P"][0] == low.kernel["baselines_P"][0]


def test_uniform_loo_weighs_all_other_prompts_alike(small, words, questions):
    """The ablation: r_i minus the mean of the others, with P - 1 contributors."""
    arm = dataclasses.replace(small.arm(GS1), estimator="uniform_loo", kernel=None)

    estimate = estimator(arm, questions).estimate(words.train[:3], [[1.0], [0.0], [0.5]])

    got = [float(row[0]) for row in estimate.advantages_P_G]
    assert got == pytest.approx([0.75, -0.75, 0.0])
    assert estimate.kernel["contributors_P"] == pytest.approx([2.0] * 3)


def test_an_estimator_goes_by_its_name_and_not_by_its_kernel(small, words, questions):
    """A kernel left in a uniform or a group arm changes nothing."""
    kernel, rewards = small.arm(GS1).kernel, [[1.0], [0.0], [0.5]]
    uniform = dataclasses.replace(small.arm(GS1), estimator="uniform_loo")
    grouped = dataclasses.replace(small.arm(GRPO), kernel=kernel)

    assert estimator(uniform, questions).estimate(words.train[:3], rewards).kernel[
        "contributors_P"
    ] == pytest.approx([2.0] * 3)
    assert estimator(grouped, questions).estimate(words.train[:1], [[1.0, 0.0]]).kernel is None


def test_an_estimator_that_cant_be_made_is_refused(small, questions):
    """gs1 without a kernel must not fall back to uniform weights, nor an unknown name to gs1."""
    arm = dataclasses.replace(small.arm(GS1), kernel=None)

    with pytest.raises(RunError, match="arm gs1_seed0: estimator 'gs1'"):
        estimator(arm, questions)
    with pytest.raises(CardError, match="estimator 'gs2' is unknown, did you mean 'gs1'"):
        estimator(dataclasses.replace(arm, estimator="gs2"), questions)


@pytest.mark.parametrize("name", ["gs1", "uniform_loo"])
def test_gs1_with_two_rollouts_a_prompt_is_refused(small, words, questions, name):
    """Within-group peers are not what GS1 is about; the number that was got is named."""
    arm = dataclasses.replace(small.arm(GS1), estimator=name)

    with pytest.raises(RunError, match=r"arm gs1_seed0: .* 1 rollout a prompt, got \[2\]"):
        estimator(arm, questions).estimate(words.train[:2], [[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_named(bad):
    """Arm, step, train item and rollout of the first one are in the message."""
    rewards = [[1.0, 0.0], [0.0, bad]]

    with pytest.raises(RunError, match="arm a: step 7, train item 42, rollout 1: the reward is"):
        refuse_bad_rewards("a", 7, [17, 42], rewards)


def test_finite_rewards_are_not_refused():
    """Anything finite is let through."""
    refuse_bad_rewards("a", 0, [1, 2], [[1.0, -0.1], [0.9, 0.0]])


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("group_mean", {}, [0.75, -0.25, -0.25, -0.25]),
        ("group_std", {"ddof": 1, "eps": 0.0}, [1.5, -0.5, -0.5, -0.5]),
        ("rloo", {}, [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("maxrl", {}, [3.0, -1.0, -1.0, -1.0]),
        ("tailrl", {}, [3.0, -1.0, -1.0, -1.0]),
        ("tail_quantile", {"quantile": 0.75}, [0.75, 0.0, 0.0, 0.0]),
    ],
)
def test_group_estimators_by_name_with_their_settings(small, words, name, config, expected):
    """One success of four, worked by hand for every estimator; a group without spread gets 0."""
    arm = dataclasses.replace(small.arm(GRPO), estimator=name, estimator_config=config)

    estimate = estimator(arm, []).estimate(words.train[:2], [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0]])

    assert estimate.advantages_P_G[0] == pytest.approx(expected, abs=1e-12)
    assert estimate.advantages_P_G[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("group_std", {"ddof": 1}, "eps is missing; it takes ddof, eps"),
        ("tail_quantile", {}, "quantile is missing; it takes quantile"),
        ("maxrl", {"eps": 0.1}, "eps is unknown; it takes none"),
    ],
)
def test_missing_and_foreign_settings_are_refused_before_the_first_step(small, name, config, said):
    """An estimator never falls back to a default that nobody registered."""
    arm = dataclasses.replace(small.arm(GRPO), estimator=name, estimator_config=config)

    with pytest.raises(RunError, match=f"estimator {name}: {said}"):
        estimator(arm, [])
