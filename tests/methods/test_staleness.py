"""Staleness metrics against plain loops, at lag 0, and under planted faults."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RunError, StatisticsError
from harness.methods import loss_and_gradient
from harness.methods.staleness import (
    TAIL_TOKENS,
    Batch,
    by_turn,
    clip_fractions,
    entropy_estimates,
    is_zero_variance,
    kl_estimates,
    ratio_stats,
    zero_variance_share,
)

FIELD_CASES = json.loads((Path(__file__).parents[1] / "field_cases.json").read_text())
CASES = {case["id"]: case for case in FIELD_CASES}


def token_batch(learner, behaviour, advantages) -> Batch:
    """A batch of one group of one rollout that holds all tokens."""
    return Batch.of(learner, behaviour, advantages, [0] * len(learner), [[1.0]])


def batches():
    """Batches of up to twelve tokens."""
    one = st.tuples(st.floats(-4, 0), st.floats(-4, 0), st.floats(-2, 2))
    rows = st.lists(one, min_size=1, max_size=12)
    return rows.map(lambda tokens: token_batch(*map(list, zip(*tokens, strict=True))))


def quantile(values, share):
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def test_fresh_rollouts_are_not_stale():
    """At lag 0, where learner and behaviour agree, ratios are 1 and everything else is 0."""
    logprobs = np.random.default_rng(0).uniform(-3, 0, 50)
    batch = token_batch(logprobs, logprobs, np.linspace(-1, 1, 50))
    stats = ratio_stats(batch)
    assert {stats.mean, stats.p1, stats.p5, stats.p95, stats.p99, stats.max} == {1.0}
    assert stats.tokens == 50
    kl = kl_estimates(batch)
    assert (kl.k1, kl.k2, kl.k3) == (0.0, 0.0, 0.0)
    clip = clip_fractions(batch, 0.8, 1.2)
    assert (clip.raw, clip.active) == (0.0, 0.0)


def test_float32_noise_is_far_below_staleness():
    """Log-probs that differ by float32 noise have a KL far under that of a stale batch."""
    rng = np.random.default_rng(1)
    logprobs = rng.uniform(-3, 0, 500)
    noisy = kl_estimates(token_batch(logprobs + rng.normal(0, 1e-6, 500), logprobs, [1.0] * 500))
    stale = kl_estimates(token_batch(logprobs + rng.normal(0, 0.1, 500), logprobs, [1.0] * 500))
    assert noisy.k2 < 1e-11 < 1e-3 < stale.k2
    assert 0 <= noisy.k3 < 1e-11
    assert stale.k3 > 1e-3


@given(batches())
def test_ratio_statistics_match_sorting(batch):
    """Mean, quantiles and maximum equal those of a sorted list of ratios."""
    ratios = [math.exp(p - q) for p, q in zip(batch.learner_T, batch.behaviour_T, strict=True)]
    stats = ratio_stats(batch)
    expected = [sum(ratios) / len(ratios), *(quantile(ratios, s) for s in (0.01, 0.05, 0.95, 0.99))]
    found = [stats.mean, stats.p1, stats.p5, stats.p95, stats.p99]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert stats.max == pytest.approx(max(ratios))


@given(batches())
def test_kl_estimates_match_loops(batch):
    """k1, k2 and k3 equal their definitions, and k2 and k3 are never negative."""
    logs = [p - q for p, q in zip(batch.learner_T, batch.behaviour_T, strict=True)]
    kl, n = kl_estimates(batch), len(logs)
    assert kl.k1 == pytest.approx(sum(-x for x in logs) / n, abs=1e-12)
    assert kl.k2 == pytest.approx(sum(x * x / 2 for x in logs) / n, abs=1e-12)
    assert kl.k3 == pytest.approx(sum(math.exp(x) - 1 - x for x in logs) / n, abs=1e-9)
    assert kl.k2 >= 0
    assert kl.k3 >= 0


def test_kl_estimates_estimate_the_divergence():
    """Over many behaviour samples k1 and k3 meet the exact KL(behaviour || learner)."""
    behaviour, learner = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    exact = float(np.sum(behaviour * np.log(behaviour / learner)))
    reverse = float(np.sum(learner * np.log(learner / behaviour)))
    drawn = np.random.default_rng(2).choice(3, size=400_000, p=behaviour)
    batch = token_batch(np.log(learner[drawn]), np.log(behaviour[drawn]), np.ones(drawn.size))
    kl = kl_estimates(batch)
    assert abs(exact - reverse) > 5e-4
    assert kl.k1 == pytest.approx(exact, abs=1.5e-3)
    assert kl.k3 == pytest.approx(exact, abs=3e-4)
    # the mean ratio of behaviour samples is 1
    assert ratio_stats(batch).mean == pytest.approx(1.0, abs=1e-3)


@given(batches())
def test_active_clip_is_where_the_loss_has_no_slope(batch):
    """A token counts as clip-active exactly where the ppo loss gives it no gradient."""
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    loss = loss_and_gradient("ppo", batch.learner_T, batch.behaviour_T, batch.advantages_T, config)
    silenced = (loss.gradient_T == 0) & (batch.advantages_T * batch.ratio_T != 0)
    clip = clip_fractions(batch, 0.8, 1.2)
    assert clip.active == pytest.approx(silenced.mean())
    assert clip.active <= clip.raw


def test_clip_fractions_know_the_sign():
    """Raw counts both sides for every token; active needs the advantage to point outwards."""
    ratios = [1.5, 1.5, 0.5, 0.5, 1.0, 1.5]
    batch = token_batch(np.log(ratios), [0.0] * 6, [1, -1, 1, -1, 1, 0])
    clip = clip_fractions(batch, 0.8, 1.2)
    assert clip.raw == pytest.approx(5 / 6)
    assert clip.active == pytest.approx(2 / 6)


def test_planted_faults_change_the_metrics():
    """A behaviour log-prob taken from the learner and a swapped pair are both visible."""
    rng = np.random.default_rng(3)
    behaviour = rng.uniform(-3, -1, 2000)
    learner = behaviour + rng.normal(0.1, 0.3, 2000)
    advantages = rng.choice([-1.0, 1.0], 2000)
    right = token_batch(learner, behaviour, advantages)
    from_learner = token_batch(learner, learner, advantages)
    swapped = token_batch(behaviour, learner, advantages)
    assert clip_fractions(right, 0.8, 1.2).raw > 0.3
    assert clip_fractions(from_learner, 0.8, 1.2).raw == 0.0
    assert kl_estimates(swapped).k1 == pytest.approx(-kl_estimates(right).k1)


def test_entropies_by_hand():
    """Behaviour entropy and the learner's cross-entropy are negative means of log-probs."""
    found = entropy_estimates(token_batch([-1.0, -2.0], [-0.5, -1.0], [1, 1]))
    assert (found.behaviour, found.cross) == (0.75, 1.5)


def test_zero_variance_groups_are_counted_before_filtering():
    """All right, all wrong and equal graded rewards are constant; ragged groups count as one."""
    groups = [[1, 1, 1], [0, 0], [0.1, 0.1, 0.1], [0, 1, 0, 0]]
    assert zero_variance_share(groups) == 0.75
    assert [is_zero_variance(group) for group in groups] == [True, True, True, False]
    with pytest.raises(StatisticsError, match="0 groups"):
        zero_variance_share([])


@pytest.mark.parametrize("case_id", ["P03", "P04"])
def test_field_case_clip_fraction(case_id):
    """The clip fraction counts the side on which the clip binds (P03, P04)."""
    case, expected = CASES[case_id]["input"], CASES[case_id]["expected"]
    ratios = case["ratios"]
    batch = token_batch(np.log(ratios), [0.0] * len(ratios), case["advantages"])
    clip = clip_fractions(batch, 1 - case["eps"], 1 + case["eps"])
    assert clip.active == expected["fraction"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: token_batch([-1.0], [math.nan], [1.0]), RunError, "behaviour log-prob at pos"),
        (lambda: token_batch([-1.0], [-2000.0], [1.0]), RunError, "importance ratio at pos"),
        (lambda: token_batch([-1.0], [-1.0, -2.0], [1.0]), StatisticsError, "behaviour log-probs"),
        (lambda: token_batch([-1.0], [-1.0], [1.0, 1.0]), StatisticsError, "advantages has shape"),
        (
            lambda: Batch.of([-1.0], [-1.0], [1.0], [], [[1.0]]),
            StatisticsError,
            "rollout places have shape",
        ),
        (
            lambda: Batch.of([-1.0], [-1.0], [1.0], [2], [[1.0], [0.0]]),
            StatisticsError,
            "indices run from 2 to 2, but the groups hold 2 rollouts",
        ),
        (
            lambda: clip_fractions(token_batch([-1.0], [-1.0], [1.0]), 1.2, 0.8),
            StatisticsError,
            "clip bounds 1.2 and 0.8",
        ),
    ],
)
def test_bad_batches_are_refused(call, error, message):
    """NaN, overflow, misaligned arrays, stray rollouts and swapped bounds each have a message."""
    with pytest.raises(error, match=message):
        call()


def turned(tokens_per_turn: dict[int, int]):
    """Tokens of two rollouts, taken in turns, with ratios around 1; and the turn of each."""
    generator = np.random.Generator(np.random.PCG64(3))
    turns = np.repeat(list(tokens_per_turn), list(tokens_per_turn.values()))
    generator.shuffle(turns)
    learner = generator.uniform(-3, -0.1, size=turns.size)
    behaviour = learner + generator.normal(scale=0.2, size=turns.size)
    rollouts = np.where(turns == 0, np.arange(turns.size) % 2, 0)
    return Batch.of(learner, behaviour, np.ones(turns.size), rollouts, [[1.0, 0.0]]), turns


def test_figures_by_turn_are_those_of_its_tokens_alone():
    """Each turn's figures equal those of a batch that holds nothing else."""
    batch, turns = turned({0: 250, 1: 199, 4: 30})
    found = by_turn(batch, turns, 0.8, 1.2)

    assert list(found) == [0, 1, 4]
    for turn, figures in found.items():
        here = turns == turn
        alone = token_batch(batch.learner_T[here], batch.behaviour_T[here], [1.0] * here.sum())
        kl, ratios = kl_estimates(alone), ratio_stats(alone)
        assert (figures.kl_k1, figures.kl_k2, figures.kl_k3) == (kl.k1, kl.k2, kl.k3)
        assert (figures.ratio_p5, figures.ratio_p95) == (ratios.p5, ratios.p95)
        assert figures.clip_raw == clip_fractions(alone, 0.8, 1.2).raw
        assert figures.tokens == here.sum()
        assert figures.trajectories == (2 if turn == 0 else 1)


def test_first_and_last_percentiles_need_200_tokens():
    """Of fewer they would be an extreme: nothing is told."""
    batch, turns = turned({0: TAIL_TOKENS, 1: TAIL_TOKENS - 1})
    many, few = by_turn(batch, turns, 0.8, 1.2).values()

    assert (many.ratio_p1, many.ratio_p99) == tuple(
        np.quantile(batch.ratio_T[turns == 0], [0.01, 0.99]).tolist()
    )
    assert few.ratio_p1 is few.ratio_p99 is None


def test_turns_are_one_a_token():
    """A turn too few is an error, not a shorter figure."""
    batch, turns = turned({0: 5})
    with pytest.raises(StatisticsError, match="turns"):
        by_turn(batch, turns[:-1], 0.8, 1.2)
