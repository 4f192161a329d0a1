import copy
import math

import pytest

from harness.audit.gates import METRICS, check_gate, within, worst
from harness.cards import GateCheck


def _gate(metric, **bounds):
    return GateCheck(metric=metric, measures="something", **bounds)


MEAN = "batch_mean_reward_pilot"


def test_values_are_measured_on_what_was_executed(experiment, pilot):
    """Every gate reports the figure that the stored rollouts give."""
    checks = experiment.card.activation_gate.checks
    values = {f.check.metric: f.value for f in (check_gate(c, pilot, experiment) for c in checks)}

    assert values == {
        "gs1_executed_group_size": 1.0,
        "rollouts_per_step_both_arms": 64.0,
        "gs1_effective_contributors_median": 30.0,
        "gs1_mean_abs_baseline_minus_uniform_loo": pytest.approx(0.05),
        "batch_mean_reward_pilot": 0.5,
        "executed_base_model": "harness/nano-qwen3",
    }


def test_unknown_metric_never_passes(experiment, pilot):
    """A gate that can't be measured fails and says what can be."""
    finding = check_gate(_gate("gs1_vibes", min=0.0), pilot, experiment)

    assert not finding.ok
    assert "gate gs1_vibes: no such measurement; use one of batch_mean" in finding.sentence


@pytest.mark.parametrize("metric", METRICS)
def test_an_empty_pilot_fails_every_gate(experiment, metric):
    """No rollouts is no evidence."""
    finding = check_gate(_gate(metric, min=-1e9, max=1e9), {}, experiment)

    assert not finding.ok
    assert finding.value is None
    assert "the pilot holds steps [], [0, 1, 2] expected" in finding.sentence


@pytest.mark.parametrize("metric", METRICS)
def test_a_short_pilot_fails_every_gate(experiment, pilot, metric):
    """A pilot that stopped early is not measured as if it were whole."""
    pilot["gs1_seed0"].pop()

    assert not check_gate(_gate(metric, min=-1e9, max=1e9), pilot, experiment).ok


@pytest.mark.parametrize("key", ["reward", "advantage"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_fail(experiment, pilot, key, value):
    """A NaN in a reward or an advantage is named with arm, step and prompt."""
    pilot["gs1_seed0"][1]["groups"][3]["rollouts"][0][key] = value
    finding = check_gate(_gate(MEAN, min=-1e9), pilot, experiment)

    assert f"arm gs1_seed0: step 1, prompt 67: {key} {value} is not" in finding.sentence


def test_a_requested_rollout_that_is_missing_fails(experiment, pilot):
    """Rollouts that were asked for and lost are not a smaller group."""
    pilot["grpo_gs8_seed0"][0]["groups"][0]["requested"] = 9
    finding = check_gate(_gate(MEAN, min=-1e9), pilot, experiment)

    assert "9 rollouts requested, 8 recorded" in finding.sentence


def test_group_size_counts_rollouts_of_a_prompt_not_groups(experiment, pilot):
    """Two groups of one prompt in a step are one group of two."""
    groups = pilot["gs1_seed0"][0]["groups"]
    groups[5]["prompt"] = groups[9]["prompt"]
    finding = check_gate(_gate("gs1_executed_group_size", min=1, max=1), pilot, experiment)

    assert 2.0 == finding.value


def test_the_same_prompt_in_two_steps_is_no_group(experiment, pilot):
    """A prompt that comes again in a later step has its own baseline there."""
    pilot["gs1_seed0"][1]["groups"][0]["prompt"] = pilot["gs1_seed0"][0]["groups"][0]["prompt"]

    assert check_gate(_gate("gs1_executed_group_size", min=1, max=1), pilot, experiment).ok


def test_the_worst_arm_is_reported(experiment, pilot):
    """One arm without learning signal is not averaged away by the other."""
    for record in pilot["gs1_seed0"]:
        for group in record["groups"]:
            group["rollouts"][0]["reward"] = 0.0
    finding = check_gate(_gate(MEAN, min=0.1, max=0.95), pilot, experiment)

    assert 0.0 == finding.value
    assert "0 was executed, bounds [0.1, 0.95]" in finding.sentence


def test_two_models_in_one_run_fail(experiment, pilot):
    """A run that changed its model half-way reports both names."""
    pilot["gs1_seed0"][2]["model"] = "other"
    names = ["harness/nano-qwen3", "other"]
    finding = check_gate(_gate("executed_base_model", one_of=names), pilot, experiment)

    assert not finding.ok
    assert "harness/nano-qwen3, other" == finding.value


def test_missing_kernel_evidence_fails(experiment, pilot):
    """Contributors are read from what the step recorded, never recomputed from the card."""
    pilot["gs1_seed0"][1]["kernel"] = None
    check = _gate("gs1_effective_contributors_median", min=2, max=40)
    finding = check_gate(check, pilot, experiment)

    assert "step 1 recorded 0 effective contributors for 64 prompts" in finding.sentence


def test_contributors_are_pooled_over_the_pilot(experiment, pilot):
    """One odd step moves the pooled median, not the whole gate."""
    pilot["gs1_seed0"][0]["kernel"]["contributors_P"] = [63.0] * 64
    check = _gate("gs1_effective_contributors_median", min=2, max=40)

    assert 30.0 == check_gate(check, pilot, experiment).value


def test_gate_on_gs1_without_such_an_arm_fails(experiment, pilot, bend):
    """Nothing to measure is a failure."""
    specs = copy.deepcopy(experiment.registration.model_dump(mode="json")["arms"])
    specs[1].update(estimator="uniform_loo", kernel=None)
    other = bend(experiment, registration={"arms": specs})
    finding = check_gate(_gate("gs1_executed_group_size", min=1, max=1), pilot, other)

    assert "no arm weighs prompts by a kernel" in finding.sentence


@pytest.mark.parametrize(
    ("value", "bounds", "ok"),
    [
        (40.0, {"max": 40.0}, True),
        (math.nextafter(40.0, 41.0), {"max": 40.0}, False),
        (0.02, {"min": 0.02}, True),
        (0.0199999, {"min": 0.02}, False),
        (math.nan, {"min": 0.0, "max": 1.0}, False),
        (math.inf, {"min": 0.0}, False),
        (1.0, {}, False),
        ("a", {"one_of": ["a"]}, True),
        ("a", {"one_of": []}, False),
        ("a", {"min": 0.0}, False),
    ],
)
def test_bounds_include_their_ends_and_nothing_else(value, bounds, ok):
    """Bounds are compared unrounded; NaN, and a gate without bounds, never pass."""
    assert ok == within(value, _gate("m", **bounds))


def test_worst_is_what_lies_furthest_out():
    """Of several values the one furthest outside is shown, else the one nearest to a bound."""
    check = _gate("m", min=10, max=20)

    assert 31.0 == worst([15.0, 31.0, 8.0], check)
    assert 19.0 == worst([15.0, 19.0, 12.0], check)
    assert worst([], check) is None
