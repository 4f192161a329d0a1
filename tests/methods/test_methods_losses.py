"""Reference losses: hand-worked values, derivatives, and what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.errors import RunError, StatisticsError
from harness.methods import importance_ratio, loss_and_gradient
from harness.methods.losses import LOSSES, clip_active

FIELD_CASES = json.loads((Path(__file__).parents[1] / "field_cases.json").read_text())
CASES = {case["id"]: case for case in FIELD_CASES}

CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
CONFIGS = {"ppo": CLIP, "cispo": CLIP}

HALF, SAME, DOUBLE = np.log([0.5, 1.0, 2.0])


def tokens():
    """Learner log-probs, behaviour log-probs and advantages of up to nine tokens."""
    one = st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.floats(-3, 3))
    return st.lists(one, min_size=1, max_size=9).map(lambda rows: np.array(rows).T)


@pytest.mark.parametrize(
    ("name", "log_ratio", "advantage", "value", "gradient"),
    [
        ("importance_sampling", DOUBLE, 3.0, -6.0, -6.0),
        ("importance_sampling", HALF, -3.0, 1.5, 1.5),
        ("ppo", DOUBLE, 3.0, -3.6, 0.0),
        ("ppo", HALF, 3.0, -1.5, -1.5),
        ("ppo", DOUBLE, -3.0, 6.0, 6.0),
        ("ppo", HALF, -3.0, 2.4, 0.0),
        ("ppo", SAME, 3.0, -3.0, -3.0),
        ("ppo", DOUBLE, 0.0, 0.0, 0.0),
        # the learner's log-prob is -2 + log ratio
        ("cispo", DOUBLE, 3.0, -1.2 * 3.0 * (-2 + DOUBLE), -3.6),
        ("cispo", HALF, -3.0, 0.8 * 3.0 * (-2 + HALF), 2.4),
        ("cross_entropy", HALF, 3.0, -3.0 * (-2 + HALF), -3.0),
    ],
)
def test_one_token_by_hand(name, log_ratio, advantage, value, gradient):
    """Each branch of each loss has the value and the slope that its formula says."""
    loss = loss_and_gradient(name, [-2 + log_ratio], [-2.0], [advantage], CONFIGS.get(name))
    assert loss.value == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(loss.gradient_T, [gradient], atol=1e-12)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cross_entropy"])
@given(batch=tokens())
def test_gradient_is_the_central_difference(name, batch):
    """The derivative predicts the change of the loss, away from the clip's two kinks."""
    logprobs, behaviour, advantages = batch
    ratio = np.exp(logprobs - behaviour)
    away = (np.abs(ratio - 0.8) > 1e-3) & (np.abs(ratio - 1.2) > 1e-3)
    step = 1e-6
    config = CONFIGS.get(name)
    gradient = loss_and_gradient(name, logprobs, behaviour, advantages, config).gradient_T
    for token in np.flatnonzero(away):
        moved = np.zeros_like(logprobs)
        moved[token] = step
        above = loss_and_gradient(name, logprobs + moved, behaviour, advantages, config).value
        below = loss_and_gradient(name, logprobs - moved, behaviour, advantages, config).value
        slope = (above - below) / (2 * step)
        assert gradient[token] == pytest.approx(slope, rel=1e-4, abs=1e-5)


@given(tokens())
def test_cispo_slope_is_the_clipped_ratio(batch):
    """CISPO never loses a token: its slope is the clipped, constant ratio times the advantage."""
    logprobs, behaviour, advantages = batch
    loss = loss_and_gradient("cispo", logprobs, behaviour, advantages, CLIP)
    ratios = [min(max(np.exp(p - q), 0.8), 1.2) for p, q in zip(logprobs, behaviour, strict=True)]
    expected = [-r * a for r, a in zip(ratios, advantages, strict=True)]
    np.testing.assert_allclose(loss.gradient_T, expected, atol=1e-12)
    assert loss.value == pytest.approx(float(np.dot(expected, logprobs)), abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
@given(batch=tokens())
def test_losses_are_sums_over_tokens(name, batch):
    """Two copies of a batch have twice the loss: nothing is divided by a length."""
    config = CONFIGS.get(name)
    once = loss_and_gradient(name, *batch, config)
    twice = loss_and_gradient(name, *np.concatenate([batch, batch], axis=1), config)
    assert twice.value == pytest.approx(2 * once.value, rel=1e-12, abs=1e-12)
    np.testing.assert_array_equal(twice.gradient_T, np.tile(once.gradient_T, 2))


@pytest.mark.parametrize("name", LOSSES)
@given(batch=tokens())
def test_tokens_without_advantage_are_masked(name, batch):
    """A token whose advantage is 0 adds nothing to the loss and gets no gradient."""
    config = CONFIGS.get(name)
    prompt = np.array([[-3.0], [0.0], [0.0]])
    plain = loss_and_gradient(name, *batch, config)
    padded = loss_and_gradient(name, *np.concatenate([prompt, batch], axis=1), config)
    assert padded.value == pytest.approx(plain.value, rel=1e-12, abs=1e-12)
    assert padded.gradient_T[0] == 0.0


@given(arrays(np.float64, st.integers(1, 9), elements=st.floats(-5, 0)))
def test_on_policy_losses_share_one_gradient(logprobs):
    """At ratio 1 importance sampling, PPO and CISPO push every token by its advantage."""
    advantages = np.linspace(-1, 1, len(logprobs))
    for name in ("importance_sampling", "ppo", "cispo"):
        loss = loss_and_gradient(name, logprobs, logprobs, advantages, CONFIGS.get(name))
        np.testing.assert_allclose(loss.gradient_T, -advantages, atol=1e-14)


def test_the_clip_is_strict_at_its_bounds():
    """A ratio exactly on a bound keeps its gradient."""
    ratio, advantages = np.array([1.25, 0.75]), np.array([1.0, -1.0])
    assert not clip_active(ratio, advantages, 0.75, 1.25).any()
    assert clip_active(ratio, advantages, 0.7500001, 1.2499999).all()


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("reinforce", None, "loss 'reinforce' is unknown"),
        ("ppo", None, r"loss ppo: the config has keys \[\]"),
        ("cispo", {"clip_low_threshold": 0.8}, "give exactly"),
        ("ppo", {**CLIP, "beta": 0.1}, "'beta'"),
        ("ppo", {"clip_low_threshold": 1.2, "clip_high_threshold": 0.8}, "clip bounds 1.2 and 0.8"),
        ("importance_sampling", CLIP, "takes no config"),
    ],
)
def test_unknown_losses_and_configs_are_refused(name, config, message):
    """A config key that a loss does not read is an error, and so is a missing bound."""
    with pytest.raises(StatisticsError, match=message):
        loss_and_gradient(name, [-1.0], [-1.0], [1.0], config)


def test_shapes_must_agree():
    """A behaviour log-prob or an advantage that is missing for a token is an error."""
    with pytest.raises(StatisticsError, match=r"behaviour log-probs has shape \(1,\)"):
        loss_and_gradient("importance_sampling", [-1.0, -2.0], [-1.0], [1.0, 1.0])
    with pytest.raises(StatisticsError, match=r"advantages has shape \(1,\)"):
        loss_and_gradient("importance_sampling", [-1.0, -2.0], [-1.0, -2.0], [1.0])


def test_non_finite_numbers_are_named_where_they_are_born():
    """NaN log-probs and a ratio that overflows are errors with their position."""
    with pytest.raises(RunError, match="behaviour log-prob at position 1 is nan"):
        loss_and_gradient("importance_sampling", [-1, -1], [-1, float("nan")], [1, 1])
    with pytest.raises(RunError, match="importance ratio at position 1 is inf"):
        loss_and_gradient("importance_sampling", [-1, -1], [-1, -2000], [1, 1])


def test_field_case_ratio_of_a_stale_sample():
    """The denominator is the behaviour policy's log-prob, not the learner's (P10)."""
    case, expected = CASES["P10"]["input"], CASES["P10"]["expected"]
    ratio = importance_ratio([case["logp_now"]], [case["logp_behaviour"]])
    assert ratio[0] == pytest.approx(expected["ratio"], abs=expected["abs_tol"])


@pytest.mark.parametrize("case_id", ["P03", "P04"])
def test_field_case_clip_is_active(case_id):
    """Whether the clip binds depends on the sign of the advantage (P03, P04)."""
    case, expected = CASES[case_id]["input"], CASES[case_id]["expected"]
    low, high = 1 - case["eps"], 1 + case["eps"]
    active = clip_active(np.array(case["ratios"]), np.array(case["advantages"]), low, high)
    assert active.tolist() == expected["clipped"]
    assert active.mean() == expected["fraction"]


def test_field_case_token_sums_weigh_by_length():
    """At ratio 1, token sums couple advantage with length; means of sequences do not (P16)."""
    case, expected = CASES["P16"]["input"], CASES["P16"]["expected"]
    losses = [
        loss_and_gradient("importance_sampling", [-1.0] * n, [-1.0] * n, [a] * n).value
        for a, n in zip(case["advantages"], case["lengths"], strict=True)
    ]
    assert sum(losses) / sum(case["lengths"]) == pytest.approx(expected["token_mean"])
    means = [loss / n for loss, n in zip(losses, case["lengths"], strict=True)]
    assert np.mean(means) == pytest.approx(expected["seq_mean"])


def test_field_case_absent_behaviour_log_probs():
    """Log-probs that were not passed through are an error, never zeros (P09)."""
    with pytest.raises(StatisticsError, match=r"behaviour log-probs have shape \(0,\)"):
        loss_and_gradient("importance_sampling", [-1.0], [], [1.0])
