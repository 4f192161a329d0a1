"""Clip-active advantage mass: by hand, against loops, conserved, blind to order."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import StatisticsError
from harness.methods import maxrl
from harness.methods.clip_mass import K_BUCKETS, OTHER, Mass, mass_by_rank, mass_by_successes
from harness.methods.staleness import Batch, clip_fractions

LOW, HIGH = 0.8, 1.2


@st.composite
def batches(draw, binary: bool):
    """Batches of ragged groups with up to three tokens a rollout, ratios on a grid."""
    reward = st.sampled_from([0.0, 1.0] if binary else [-0.2, 0.0, 0.3, 0.9])
    groups = draw(st.lists(st.lists(reward, min_size=1, max_size=8), min_size=1, max_size=4))
    rollouts = sum(map(len, groups))
    token = st.tuples(
        st.sampled_from([0.5, 0.9, 1.0, 1.1, 2.0]),
        st.sampled_from([-1.5, -0.5, 0.0, 0.5, 2.0]),
        st.integers(0, rollouts - 1),
    )
    tokens = draw(st.lists(token, min_size=1, max_size=20))
    ratios, advantages, places = map(list, zip(*tokens, strict=True))
    return Batch.of(np.log(ratios), [0.0] * len(tokens), advantages, places, groups)


def tokens_of(batch: Batch):
    """(group index, rollout within group, |A|, clipped |A|, sign) of each token, by loops."""
    owners = [(p, g) for p, group in enumerate(batch.rewards) for g in range(len(group))]
    for ratio, advantage, place in zip(
        np.exp(batch.learner_T - batch.behaviour_T),
        batch.advantages_T,
        batch.rollout_T,
        strict=True,
    ):
        outward = (advantage > 0 and ratio > HIGH) or (advantage < 0 and ratio < LOW)
        weight = abs(float(advantage))
        yield *owners[place], weight, weight if outward else 0.0, np.sign(advantage)


@given(batches(binary=True))
def test_mass_by_successes_matches_a_loop(batch):
    """Each token's |A| lands in the bucket of its group's successes, clipped where it binds."""
    expected = defaultdict(lambda: np.zeros(3))
    for p, _, weight, clipped, _ in tokens_of(batch):
        k = sum(batch.rewards[p])
        names = [name for name, (low, high) in K_BUCKETS.items() if low <= k <= high]
        expected[names[0] if names else OTHER] += [1, weight, clipped]
    found = mass_by_successes(batch, LOW, HIGH)
    assert list(found) == [*K_BUCKETS, OTHER]
    for name, mass in found.items():
        np.testing.assert_allclose([mass.tokens, mass.total, mass.clipped], expected[name])


@given(batches(binary=False))
def test_mass_by_rank_matches_a_loop(batch):
    """Each token's |A| is spread over the ranks that rewards equal to its own occupy."""
    size = max(map(len, batch.rewards))
    expected = {1: np.zeros((size, 3)), -1: np.zeros((size, 3))}
    for p, g, weight, clipped, sign in tokens_of(batch):
        if sign == 0:
            continue
        ordered = sorted(batch.rewards[p], reverse=True)
        ranks = [rank for rank, reward in enumerate(ordered) if reward == batch.rewards[p][g]]
        for rank in ranks:
            expected[sign][rank] += np.array([1, weight, clipped]) / len(ranks)
    found = mass_by_rank(batch, LOW, HIGH)
    for sign, masses in ((1, found.positive), (-1, found.negative)):
        table = [[mass.tokens, mass.total, mass.clipped] for mass in masses]
        np.testing.assert_allclose(table, expected[sign], atol=1e-12)


@given(batches(binary=True))
def test_mass_is_conserved(batch):
    """Both tables add up to the sum of |A| and of its clip-active part."""
    total = sum(weight for _, _, weight, _, _ in tokens_of(batch))
    clipped = sum(part for _, _, _, part, _ in tokens_of(batch))
    ranks = mass_by_rank(batch, LOW, HIGH)
    for masses in (
        [*mass_by_successes(batch, LOW, HIGH).values()],
        [*ranks.positive, *ranks.negative],
    ):
        assert sum(mass.total for mass in masses) == pytest.approx(total)
        assert sum(mass.clipped for mass in masses) == pytest.approx(clipped)
    counted = sum(mass.tokens for mass in mass_by_successes(batch, LOW, HIGH).values())
    assert counted == batch.learner_T.size


def test_shares_and_rates_by_hand():
    """Raw sums give the rate within a bucket and the share of the whole."""
    rewards = [[1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]
    advantages = maxrl(rewards).ravel()
    # one token a rollout; the learner likes the first success of each group too much
    ratios = np.ones(16)
    ratios[[0, 8]] = 1.5
    batch = Batch.of(np.log(ratios), np.zeros(16), advantages, np.arange(16), rewards)
    found = mass_by_successes(batch, LOW, HIGH)
    assert found["1"] == Mass(tokens=8, total=14, clipped=7)
    assert found["3-5"] == Mass(tokens=8, total=8, clipped=1)
    assert found["1"].rate == 0.5
    assert found["1"].clipped / sum(mass.total for mass in found.values()) == pytest.approx(7 / 22)
    assert np.isnan(found["2"].rate)
    assert clip_fractions(batch, LOW, HIGH).active == 2 / 16


@given(batches(binary=False), st.randoms(use_true_random=False))
def test_rank_table_does_not_depend_on_the_order_of_a_group(batch, random):
    """Permuting the rollouts of the groups, with their tokens, changes no rank's mass."""
    start, order = 0, []
    for group in batch.rewards:
        places = list(range(start, start + len(group)))
        random.shuffle(places)
        order.extend(places)
        start += len(group)
    flat = np.concatenate(batch.rewards)[order]
    groups = np.split(flat, np.cumsum([len(group) for group in batch.rewards])[:-1])
    places = np.argsort(order)[batch.rollout_T]
    moved = Batch.of(batch.learner_T, batch.behaviour_T, batch.advantages_T, places, groups)
    before, after = (mass_by_rank(one, LOW, HIGH) for one in (batch, moved))
    for left, right in ((before.positive, after.positive), (before.negative, after.negative)):
        for a, b in zip(left, right, strict=True):
            assert (a.total, a.clipped) == pytest.approx((b.total, b.clipped))


def test_a_clip_metric_that_ignores_the_sign_is_told_apart():
    """Tokens outside the bounds on the side where the clip does not bind carry no clipped mass."""
    batch = Batch.of(np.log([1.5, 0.5]), [0.0, 0.0], [-1.0, 1.0], [0, 1], [[0.0, 1.0]])
    assert clip_fractions(batch, LOW, HIGH).raw == 1.0
    assert mass_by_successes(batch, LOW, HIGH)["1"] == Mass(tokens=2, total=2, clipped=0)


def test_graded_rewards_have_no_success_count():
    """Successes are counted on 0 and 1 only; a graded reward is named with its group."""
    batch = Batch.of([0.0], [0.0], [1.0], [0], [[0.9, 1.0]])
    with pytest.raises(StatisticsError, match=r"group 0 has rewards \[0.9, 1.0\]"):
        mass_by_successes(batch, LOW, HIGH)
