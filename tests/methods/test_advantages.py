"""Advantage estimators against references written another way, by their properties, by cases."""

import json
from collections import defaultdict
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.errors import RunError, StatisticsError
from harness.methods import (
    baselines,
    group_mean,
    group_std,
    gs1,
    maxrl,
    per_group,
    rloo,
    softmax_loo_weights,
    tail_quantile,
    tailrl,
    uniform_loo,
    uniform_loo_weights,
)

FIELD_CASES = json.loads((Path(__file__).parents[1] / "field_cases.json").read_text())
CASES = {case["id"]: case for case in FIELD_CASES}


def grpo(rewards_P_G):
    """GRPO with torch's standard deviation, as the third lag card has it."""
    return group_std(rewards_P_G, ddof=1, eps=1e-6)


def above_75(rewards_P_G):
    """The tail-quantile estimator with the third lag card's quantile."""
    return tail_quantile(rewards_P_G, 0.75)


CENTRED = {"group_mean": group_mean, "grpo": grpo, "rloo": rloo, "tailrl": tailrl}
GROUPED = {**CENTRED, "tail_quantile": above_75}

each_grouped = pytest.mark.parametrize("name", sorted(GROUPED))
each_centred = pytest.mark.parametrize("name", sorted(CENTRED))


def reward_groups(least: int = 2):
    """Groups of rewards on a grid of eighths, so that ties and shifts are exact."""
    shapes = st.tuples(st.integers(1, 4), st.integers(least, 9))
    eighths = st.integers(-16, 16).map(lambda value: value / 8)
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=eighths))


def binary_groups():
    """Groups of 0/1 rewards."""
    shapes = st.tuples(st.integers(1, 4), st.integers(1, 9))
    return shapes.flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0]))
    )


# references in plain Python over exact fractions, one rollout at a time


def exact(rewards):
    """Rewards as exact fractions."""
    return [Fraction(float(reward)) for reward in rewards]


def reference_rloo(rewards):
    """Own reward minus the mean of the list without it."""
    r = exact(rewards)
    return [
        float(own - sum(r[:i] + r[i + 1 :]) / (len(r) - 1)) for i, own in enumerate(r)
    ]  # fmt: skip


def reference_group_mean(rewards):
    """Average signed distance to every member of the group."""
    r = exact(rewards)
    return [float(sum(own - other for other in r) / len(r)) for own in r]


def reference_std(rewards, ddof):
    """Standard deviation by half the mean squared distance of all pairs."""
    r = exact(rewards)
    pairs = sum((a - b) ** 2 for a, b in combinations(r, 2))
    return float(pairs / len(r) / (len(r) - ddof)) ** 0.5


def reference_best_of_k(rewards, index):
    """d/d(weight of rollout) of sum_k E[best of k]/k, by enumerating all subsets of the others.

    Rollout i is credited in a subset with the reward that it adds to the best of the others.
    """
    r = exact(rewards)
    others = r[:index] + r[index + 1 :]
    floor = min(r)
    total = Fraction(0)
    for size in range(len(others) + 1):
        subsets = list(combinations(others, size))
        gained = sum(max(r[index], *subset, floor) - max([*subset, floor]) for subset in subsets)
        total += Fraction(gained, len(subsets))
    return total


@given(reward_groups())
def test_group_mean_matches_pairwise_distances(rewards_P_G):
    """Reward minus group mean is the average distance to every member of the group."""
    expected = [reference_group_mean(group) for group in rewards_P_G]
    np.testing.assert_allclose(group_mean(rewards_P_G), expected, atol=1e-14)


@given(reward_groups())
def test_rloo_matches_lists_without_the_own_reward(rewards_P_G):
    """RLOO subtracts the mean of the list from which the own reward was taken out."""
    expected = [reference_rloo(group) for group in rewards_P_G]
    np.testing.assert_allclose(rloo(rewards_P_G), expected, atol=1e-13)


@given(reward_groups(), st.sampled_from([0, 1]), st.sampled_from([1e-6, 1e-4, 0.5]))
def test_group_std_matches_pairwise_spread(rewards_P_G, ddof, eps):
    """GRPO divides by the standard deviation plus eps, with the ddof that was asked for."""
    expected = [
        np.array(reference_group_mean(group)) / (reference_std(group, ddof) + eps)
        for group in rewards_P_G
    ]
    np.testing.assert_allclose(group_std(rewards_P_G, ddof, eps), expected, rtol=1e-9, atol=1e-12)


@given(reward_groups().filter(lambda r: r.shape[1] <= 7))
def test_tailrl_is_the_sum_of_what_a_rollout_adds_to_the_best_of_others(rewards_P_G):
    """TailRL credits the gain over the best of every subset of the others, then centres."""
    for group, advantages in zip(rewards_P_G, tailrl(rewards_P_G), strict=True):
        gains = [reference_best_of_k(group, i) for i in range(len(group))]
        mean = sum(gains) / len(gains)
        expected = [float(gain - mean) for gain in gains]
        np.testing.assert_allclose(advantages, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([3, 0, 1], [4.5, -3, -1.5]),
        ([0.2, 0.5, 0.8], [-0.6, -0.15, 0.75]),
        ([-0.2] * 7 + [0.0], [-0.2] * 7 + [1.4]),
        ([-0.2] * 7 + [0.9], [-1.1] * 7 + [7.7]),
        (
            [-0.2, -0.2, 0, 0.1, 0.1, 0.3, 0.5, 0.9],
            [-1.10, -1.10, -0.83, -0.67, -0.67, -0.14, 0.66, 3.86],
        ),
    ],
)
def test_tailrl_golden_groups(rewards, expected):
    """Worked groups of the released scaling come out as published."""
    np.testing.assert_allclose(tailrl([rewards])[0], expected, atol=0.005)


@given(binary_groups())
def test_tailrl_on_binary_rewards_is_maxrl(rewards_P_G):
    """On 0/1 rewards TailRL and MaxRL are one estimator, also for k = 0 and k = N."""
    np.testing.assert_allclose(tailrl(rewards_P_G), maxrl(rewards_P_G), atol=1e-12)


@pytest.mark.parametrize("successes", range(9))
def test_maxrl_has_the_cards_three_values(successes):
    """N/k - 1 for a success, -1 for a failure, and 0 for everybody if nobody succeeds."""
    rewards = [1.0] * successes + [0.0] * (8 - successes)
    won, lost = (8 / successes - 1, -1.0) if successes else (0.0, 0.0)
    expected = [won] * successes + [lost] * (8 - successes)
    np.testing.assert_allclose(maxrl([rewards])[0], expected, atol=1e-14)


@pytest.mark.parametrize(
    ("successes", "credited"), [(0, 0.0), (1, 7 / 8), (2, 6 / 8), (3, 0.0), (8, 0.0)]
)
def test_tail_quantile_credits_only_above_the_quantile(successes, credited):
    """With eight 0/1 rewards and the quantile 0.75, one or two successes are credited."""
    rewards = [1.0] * successes + [0.0] * (8 - successes)
    expected = [credited] * successes + [0.0] * (8 - successes)
    np.testing.assert_allclose(tail_quantile([rewards], 0.75)[0], expected, atol=1e-14)


@given(reward_groups(), st.sampled_from([0.25, 0.5, 0.75, 0.9]))
def test_tail_quantile_matches_counting(rewards_P_G, quantile):
    """Credited are the rewards above the interpolated order statistic, by their distance to it."""
    for group, advantages in zip(rewards_P_G, tail_quantile(rewards_P_G, quantile), strict=True):
        r = exact(group)
        place = Fraction(quantile) * (len(r) - 1)
        low, part = int(place), place - int(place)
        ordered = sorted(r)
        threshold = ordered[low] + part * (ordered[min(low + 1, len(r) - 1)] - ordered[low])
        mean = sum(r) / len(r)
        expected = [float(max(own - mean, 0)) if own > threshold else 0.0 for own in r]
        np.testing.assert_allclose(advantages, expected, atol=1e-12)


@each_grouped
@given(rewards_P_G=reward_groups(), data=st.data())
def test_estimators_follow_a_permutation(name, rewards_P_G, data):
    """Reordering a group reorders its advantages and changes none."""
    order = np.array(data.draw(st.permutations(range(rewards_P_G.shape[1]))))
    estimator = GROUPED[name]
    np.testing.assert_allclose(
        estimator(rewards_P_G[:, order]), estimator(rewards_P_G)[:, order], atol=1e-12
    )


@each_grouped
@given(rewards_P_G=reward_groups(), shift=st.integers(-64, 64).map(lambda value: value / 8))
def test_estimators_ignore_a_shift(name, rewards_P_G, shift):
    """A constant added to every reward of a group changes no advantage."""
    estimator = GROUPED[name]
    np.testing.assert_allclose(estimator(rewards_P_G + shift), estimator(rewards_P_G), atol=1e-12)


@pytest.mark.parametrize("name", ["group_mean", "rloo", "tailrl", "tail_quantile"])
@given(rewards_P_G=reward_groups(), scale=st.sampled_from([0.25, 2.0, 3.0, 10.0]))
def test_linear_estimators_follow_a_positive_scale(name, rewards_P_G, scale):
    """Rewards multiplied by a positive number multiply the advantages by it."""
    estimator = GROUPED[name]
    np.testing.assert_allclose(
        estimator(rewards_P_G * scale), estimator(rewards_P_G) * scale, atol=1e-11
    )


@given(rewards_P_G=reward_groups(), scale=st.sampled_from([0.25, 2.0, 3.0, 10.0]))
def test_group_std_ignores_a_positive_scale(rewards_P_G, scale):
    """Divided by the standard deviation, and without eps, advantages have no unit."""
    np.testing.assert_allclose(
        group_std(rewards_P_G * scale, 0, 0.0), group_std(rewards_P_G, 0, 0.0), atol=1e-11
    )


@each_grouped
@given(rewards_P_G=reward_groups())
def test_estimators_treat_ties_alike(name, rewards_P_G):
    """Equal rewards in a group get equal advantages."""
    for group, advantages in zip(rewards_P_G, GROUPED[name](rewards_P_G), strict=True):
        by_reward = defaultdict(set)
        for reward, advantage in zip(group, advantages, strict=True):
            by_reward[reward].add(advantage)
        assert all(len(values) == 1 for values in by_reward.values())


@each_centred
@given(rewards_P_G=reward_groups())
def test_centred_estimators_sum_to_zero(name, rewards_P_G):
    """What one rollout of a group gains, the others lose."""
    np.testing.assert_allclose(CENTRED[name](rewards_P_G).sum(axis=1), 0.0, atol=1e-11)


@each_grouped
@pytest.mark.parametrize("reward", [0.1, -0.1, 1.0, 0.9])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_zero_variance_groups_are_exactly_zero(name, reward, size):
    """A group whose rewards are all equal teaches nothing, without a rounding residue."""
    assert not GROUPED[name]([[reward] * size]).any()


@given(reward_groups().map(lambda rewards: rewards[:, :2]))
def test_groups_of_two(rewards_P_2):
    """With two rollouts RLOO and TailRL are the signed difference, twice the centred reward."""
    difference = rewards_P_2[:, :1] - rewards_P_2[:, 1:]
    expected = np.hstack([difference, -difference])
    np.testing.assert_allclose(rloo(rewards_P_2), expected, atol=1e-14)
    np.testing.assert_allclose(tailrl(rewards_P_2), expected, atol=1e-14)
    np.testing.assert_allclose(group_mean(rewards_P_2), expected / 2, atol=1e-14)


# batch estimators


@given(
    arrays(np.float64, st.integers(2, 12), elements=st.integers(-16, 16).map(lambda v: v / 8)),
    st.integers(0, 2**32 - 1),
)
def test_gs1_matches_a_loop_over_neighbours(rewards_P, seed):
    """GS1 subtracts the weighted mean of the others, and never looks at the own reward."""
    n = len(rewards_P)
    similarity = np.random.default_rng(seed).uniform(0, 1, (n, n))
    tau = 0.3
    expected = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        raw = [np.exp(similarity[i, j] / tau) for j in others]
        baseline = sum(w * rewards_P[j] for w, j in zip(raw, others, strict=True)) / sum(raw)
        expected.append(rewards_P[i] - baseline)
    advantages = gs1(rewards_P, softmax_loo_weights(similarity, tau))
    np.testing.assert_allclose(advantages, expected, atol=1e-12)


@given(
    arrays(np.float64, st.integers(2, 12), elements=st.floats(-2, 2)),
    st.floats(-5, 5),
    st.data(),
)
def test_own_reward_does_not_enter_its_baseline(rewards_P, changed, data):
    """Changing one reward leaves that rollout's baseline as it was."""
    index = data.draw(st.integers(0, len(rewards_P) - 1))
    rng = np.random.default_rng(len(rewards_P))
    weights = softmax_loo_weights(rng.uniform(0, 1, (len(rewards_P),) * 2), 0.2)
    other = rewards_P.copy()
    other[index] = changed
    before = baselines(rewards_P, weights)[index]
    assert baselines(other, weights)[index] == pytest.approx(before, abs=1e-12)


@given(arrays(np.float64, st.integers(2, 20), elements=st.integers(-8, 8).map(lambda v: v / 8)))
def test_uniform_loo_is_rloo_over_the_batch(rewards_P):
    """Uniform leave-one-out treats the batch as one group of RLOO."""
    np.testing.assert_allclose(uniform_loo(rewards_P), rloo(rewards_P[None])[0], atol=1e-13)


def test_equal_rewards_make_gs1_exactly_zero():
    """A batch in which every rollout has the same reward teaches nothing, without a residue."""
    weights = softmax_loo_weights(np.random.default_rng(0).uniform(0, 1, (7, 7)), 0.1)
    assert not gs1([0.1] * 7, weights).any()
    assert not uniform_loo([0.9] * 7).any()


# errors


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_named_with_its_place(value):
    """Every estimator refuses NaN and infinite rewards and says where the first one is."""
    rewards = [[0.0, 1.0], [1.0, value]]
    for estimator in [*GROUPED.values(), maxrl]:
        with pytest.raises(RunError, match=r"reward at position \(1, 1\) is -?(nan|inf)"):
            estimator(rewards)
    with pytest.raises(RunError, match="reward at position 2 is"):
        gs1([0.0, 1.0, value], uniform_loo_weights(3))


def test_leave_one_out_needs_a_second_rollout():
    """RLOO refuses groups of one, and the batch estimators refuse a batch of one."""
    with pytest.raises(StatisticsError, match="group size is 1"):
        rloo([[0.7], [0.2]])
    with pytest.raises(StatisticsError, match="needs at least 2"):
        uniform_loo([0.7])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0.5, 0.5], [1.0, 0.0]], r"weight \(0, 0\) is 0.5"),
        ([[0.0, 0.9], [1.0, 0.0]], "weights of row 0 sum to 1 with an error of 0.1"),
        ([[0.0, 1.0]], "one row and column per prompt"),
        (uniform_loo_weights(3), r"shape \(3, 3\), expected \(2, 2\)"),
    ],
)
def test_gs1_refuses_weights_that_are_not_leave_one_out(weights, message):
    """A weight on the own reward, a row that does not sum to 1 and a wrong shape are errors."""
    with pytest.raises(StatisticsError, match=message):
        gs1([0.0, 1.0], weights)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: maxrl([[0.0, 0.9]]), r"reward at position \(0, 1\) is 0.9"),
        (lambda: group_std([[0.0, 1.0]], ddof=2, eps=0.1), "ddof is 2"),
        (lambda: group_std([[0.0, 1.0]], ddof=0, eps=-1.0), "eps is -1"),
        (lambda: tail_quantile([[0.0, 1.0]], 1.0), "quantile is 1"),
        (lambda: group_mean([0.0, 1.0]), r"shape \(2,\)"),
        (lambda: group_mean([[0.0, 1.0], [1.0]]), "do not form an array"),
        (lambda: group_mean([[]]), r"shape \(1, 0\)"),
        (lambda: per_group(rloo, [[0, 1], [1]]), "group 1: group size is 1"),
    ],
)
def test_settings_and_shapes_that_make_no_sense_are_refused(call, message):
    """Each refusal names the value that was given."""
    with pytest.raises(StatisticsError, match=message):
        call()


# cases from public bug reports


def by_group(case):
    """The case's rewards as one list per group id, in order of first appearance."""
    groups = defaultdict(list)
    for reward, group in zip(case["rewards"], case["group_ids"], strict=True):
        groups[group].append(reward)
    return list(groups.values())


@pytest.mark.parametrize("case_id", ["A01", "A02b", "A06", "A10"])
def test_field_case_advantages(case_id):
    """Groups of one, ragged groups and near-equal rewards come out as the reports say."""
    case, expected = CASES[case_id]["input"], CASES[case_id]["expected"]

    def estimator(rewards_1_G):
        if case["method"] == "centre":
            return group_mean(rewards_1_G)
        return group_std(rewards_1_G, case["ddof"], case["eps"])

    advantages = np.concatenate(per_group(estimator, by_group(case)))
    tolerance = expected.get("abs_tol", 0.0)
    np.testing.assert_allclose(advantages, expected["advantages"], atol=tolerance, rtol=0)


def test_field_case_rloo_of_one():
    """Leave-one-out in groups of one is refused, never silently zero (A02)."""
    with pytest.raises(StatisticsError, match="group 0"):
        per_group(rloo, by_group(CASES["A02"]["input"]))


def test_field_case_equal_peers():
    """Seven equal peers have no spread, and the eighth is measured against their mean (A03)."""
    case, expected = CASES["A03"]["input"], CASES["A03"]["expected"]
    target = case["target"]
    peers = case["rewards"][:target] + case["rewards"][target + 1 :]
    assert not group_std([peers], ddof=1, eps=0.0).any()
    advantage = rloo([case["rewards"]])[0, target]
    assert advantage == pytest.approx(expected["advantage"], abs=expected["abs_tol"])


@each_grouped
def test_field_case_negative_rewards_keep_their_order(name):
    """Of two negative rewards the better one is never pushed down (A12)."""
    case, expected = CASES["A12"]["input"], CASES["A12"]["expected"]
    advantages = GROUPED[name]([case["rewards"]])[0]
    assert list(np.argsort(advantages)) == expected["order"]
    if name in CENTRED:
        assert list(np.sign(advantages)) == expected["signs"]
