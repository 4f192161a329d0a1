import copy
import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

from lagged import measure, record, sound_pilot
from rollouts import a_group, a_rollout, a_turn, turns_of

from harness.audit.gates import check_gate
from harness.audit.lag import executed_lags, lag_problems
from harness.audit.recomputed import loss_and_surrogate, staleness_figures
from harness.audit.staleness_report import ramp_lines, staleness_lines
from harness.cards import load_experiment
from harness.records import CUSTOM_LOSS

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
FRESH, STALE = "maxrl_lag0_seed0", "maxrl_lag4_seed0"
CASES = {
    case["id"]: case
    for case in json.loads((CARDS.parents[1] / "tests/field_cases.json").read_text())
}


@pytest.fixture(scope="module", name="lagged")
def _lagged():
    return load_experiment(CARDS / "maxrl_lag4_clip_mass_gsm8k_08b.json", "embedded")


@pytest.fixture(scope="module", name="once")
def _once(lagged):
    return sound_pilot(lagged)


@pytest.fixture(name="pilot")
def _pilot(once):
    return copy.deepcopy(once)


def finding(experiment, pilot, metric):
    """One registered gate on this pilot."""
    check = next(check for check in experiment.gates if check.metric == metric)
    return check_gate(check, pilot, experiment)


def failed(experiment, pilot):
    """The gates that this pilot does not pass."""
    return {c.metric for c in experiment.gates if not check_gate(c, pilot, experiment).ok}


def test_a_sound_pilot_passes_every_gate(lagged, pilot):
    """Stale where it should be, fresh where it should be, and logged as it happened."""
    assert failed(lagged, pilot) == set()


@pytest.mark.parametrize("off", [1, -1])
def test_a_lag_off_by_one_is_caught_by_the_prints_whatever_is_recorded(lagged, pilot, off):
    """The sampler held other weights than its name said; the records' own numbers look right."""
    lags = executed_lags(pilot[STALE])
    for made in pilot[STALE]:
        version = max(0, min(made["step"], made["sampled_version"] + off))
        made["fingerprints"]["sampler_T"] = pilot[STALE][version]["fingerprints"]["learner_T"]

    assert lags == [0, 1, 2, 3, 4, 4]
    assert failed(lagged, pilot) == {"executed_lag_error"}
    assert (
        "1 was executed, bounds [-inf, 0]" in finding(lagged, pilot, "executed_lag_error").sentence
    )


def test_a_lag_that_is_recorded_off_by_one_is_caught(lagged, pilot):
    """An arm that samples from max(0, t - 3) and says so."""
    for made in pilot[STALE]:
        made["sampled_version"] = max(0, made["step"] - 3)
        made["fingerprints"]["sampler_T"] = pilot[STALE][made["sampled_version"]]["fingerprints"][
            "learner_T"
        ]

    assert failed(lagged, pilot) == {"executed_lag_error"}


def test_weights_that_an_update_left_alone_are_no_wrong_lag(lagged, pilot):
    """Two versions with one fingerprint are the same weights: the recorded one is believed."""
    for arm in pilot.values():
        for made in arm:
            made["fingerprints"] = {"sampler_T": [-1.0, -2.0], "learner_T": [-1.0, -2.0]}

    assert finding(lagged, pilot, "executed_lag_error").ok


def test_steps_without_fingerprints_fail_the_gate(lagged, pilot):
    """What was not measured does not pass."""
    del pilot[STALE][4]["fingerprints"]

    assert "has no fingerprints" in finding(lagged, pilot, "executed_lag_error").sentence


def test_every_step_of_a_run_is_held_to_its_lag(lagged):
    """A single step that sampled from other weights is named."""
    arm = lagged.arm(STALE)
    records = [record(arm, step) for step in range(8)]
    records[6]["fingerprints"]["sampler_T"] = records[3]["fingerprints"]["learner_T"]

    assert lag_problems(arm, records[:6]) == []
    assert lag_problems(arm, records) == [
        f"arm {STALE}: step 6 sampled from weights 3 updates old, exactly 4 registered; look at "
        "the snapshots that it kept"
    ]


def test_behaviour_logprobs_taken_from_the_learner_are_caught(lagged, pilot):
    """The stale batch then looks fresh: no divergence and nothing clipped."""
    for made in pilot[STALE]:
        for group in made["groups"]:
            for turn in turns_of(group):
                turn["logprobs_T"] = turn["learner_logprobs_T"]
        measure(lagged.arm(STALE), made)

    assert failed(lagged, pilot) == {"lagged_kl", "lagged_clip_fraction"}


def test_datums_with_the_learners_logprobs_are_caught_by_the_loss(lagged, pilot):
    """Right rollouts are stored, but the loss was computed from other log-probs."""
    arm = lagged.arm(STALE)
    for made in pilot[STALE]:
        sent = copy.deepcopy(made)
        for group in sent["groups"]:
            for turn in turns_of(group):
                turn["logprobs_T"] = turn["learner_logprobs_T"]
        made["metrics"]["service/loss:sum"] = loss_and_surrogate(arm, sent)[0]

    assert failed(lagged, pilot) == {"reported_loss_error"}


@pytest.mark.parametrize(
    "bounds", [(1.2, 0.8), (0.8, 0.8), (0.2, 1.2), (0.8, 1.8), (-0.2, 0.2)], ids=str
)
def test_a_wrong_clip_bound_is_caught_by_the_loss(lagged, pilot, bounds):
    """Swapped bounds, or an epsilon taken for a ratio, give another loss on the stored rollouts."""
    config = dict(zip(("clip_low_threshold", "clip_high_threshold"), bounds, strict=True))
    wrong = dataclasses.replace(lagged.arm(STALE), loss_config=config)
    for made in pilot[STALE]:
        made["metrics"]["service/loss:sum"] = loss_and_surrogate(wrong, made)[0]

    assert failed(lagged, pilot) == {"reported_loss_error"}


def test_a_clip_metric_that_ignores_the_sign_is_caught(lagged, pilot):
    """Counting every ratio outside the bounds overstates what the clip takes."""
    made = pilot[STALE][5]
    made["metrics"]["staleness/clip_active"] = made["metrics"]["staleness/clip_raw"]

    assert failed(lagged, pilot) == {"logged_metrics_error"}


def test_a_figure_that_is_not_logged_is_caught(lagged, pilot):
    """A metric that went missing can't be right."""
    del pilot[STALE][5]["metrics"]["staleness/mass/k=2/clipped"]

    assert "logs other figures" in finding(lagged, pilot, "logged_metrics_error").sentence


def test_a_custom_losses_value_and_surrogate_are_both_compared(lagged, pilot):
    """The surrogate that the service was sent has the loss's gradient, or the gate is red."""
    arm = lagged.arm(STALE)
    for made in pilot[STALE]:
        loss, surrogate, _ = loss_and_surrogate(arm, made)
        made["loss_backend"] = "custom"
        made["metrics"] |= {CUSTOM_LOSS: loss, "service/loss:sum": surrogate}
    assert failed(lagged, pilot) == set()

    pilot[STALE][5]["metrics"]["service/loss:sum"] = pilot[STALE][5]["metrics"][CUSTOM_LOSS]
    assert failed(lagged, pilot) == {"reported_loss_error"}


def test_fresh_arms_that_are_not_fresh_are_caught(lagged, pilot):
    """At lag 0 the ratio is 1 and nothing is clipped, or the run is INVALID."""
    other = record(dataclasses.replace(lagged.arm(FRESH), lag=4), 5, lagged.card.base_model)
    pilot[FRESH][5] |= {key: other[key] for key in ("groups", "metrics")}

    assert failed(lagged, pilot) == {"lag0_max_abs_log_ratio", "lag0_clip_fraction"}


@pytest.mark.parametrize(("case", "naive"), [("P01", 1.114915), ("P02", 0.8)])
def test_field_case_samplers_that_reshape_their_logprobs(lagged, pilot, case, naive):
    """Log-probs at another temperature, or renormalised by top-k, turn the lag-0 gate red."""
    case = CASES[case]
    assert naive == case["expected"]["naive"]
    import math

    for group in pilot[FRESH][0]["groups"]:
        for turn in turns_of(group):
            turn["logprobs_T"] = [x - math.log(naive) for x in turn["learner_logprobs_T"]]
    measure(lagged.arm(FRESH), pilot[FRESH][0])

    assert "lag0_max_abs_log_ratio" in failed(lagged, pilot)


def test_field_case_off_policy_lag_off_by_one(lagged):
    """P11a: at lag 0 a batch of two versions is refused, however close they are."""
    used = CASES["P11a"]["input"]["versions_used"]
    records = [record(lagged.arm(FRESH), step) for step in range(used[1] + 1)]
    records[used[1]]["fingerprints"]["sampler_T"] = records[used[0]]["fingerprints"]["learner_T"]

    assert len(lag_problems(lagged.arm(FRESH), records)) == 1


def test_field_case_lag_counts_from_the_trainers_step(lagged):
    """P11b: weights of version 10 trained on at step 13 are 3 old, waiting time included."""
    case = CASES["P11b"]["input"]
    records = [record(lagged.arm(FRESH), step) for step in range(case["trainer_step"] + 1)]
    records[-1]["fingerprints"]["sampler_T"] = records[case["oldest_version"]]["fingerprints"][
        "learner_T"
    ]

    assert executed_lags(records)[-1] == CASES["P11b"]["expected"]["lag"]


def test_an_advantage_of_another_estimator_is_caught(lagged, pilot):
    """MaxRL's advantages in a GRPO arm turn the advantage gate red."""
    pilot["grpo_lag4_seed0"][0]["groups"][0]["rollouts"][0]["advantage"] += 0.1

    assert "executed_advantage_error" in failed(lagged, pilot)


def test_a_pilot_that_ends_in_the_ramp_measures_no_lag(lagged, pilot):
    """Steps 0 to 3 are not lag 4, so they say nothing of it."""
    short = dataclasses.replace(
        lagged,
        registration=lagged.registration.model_copy(
            update={"training": lagged.registration.training.model_copy(update={"pilot_steps": 4})}
        ),
    )
    cut = {name: records[:4] for name, records in pilot.items()}

    assert "no step of a lagged arm past its ramp" in finding(short, cut, "lagged_kl").sentence


def test_the_ramp_is_reported_apart(lagged, pilot):
    """One line an arm, with the ramp's steps and the steady steps each by themselves."""
    (stale,), (fresh,) = (ramp_lines(lagged.arm(name), pilot) for name in (STALE, FRESH))

    assert "ramp (steps 0-3)" in stale
    assert "lag 4 (steps 4-5)" in stale
    assert "ramp" not in fresh
    assert "lag 0 (steps 0-5): KL 0" in fresh


def test_clipped_mass_is_told_by_successes(lagged, pilot):
    """Rates within a bucket and shares of the whole, from sums over the steady steps."""
    steady = pilot[STALE][4:]
    lost = [sum(r["metrics"][f"staleness/mass/k={k}/clipped"] for r in steady) for k in "12"]
    total = sum(r["metrics"]["staleness/mass/k=2/total"] for r in steady)
    everything = sum(r["metrics"]["staleness/mass_clipped"] for r in steady)

    figures, by_k = staleness_lines(lagged.arm(STALE), pilot[STALE])

    assert figures.startswith(f"{STALE}, steps 4-5: KL ")
    shown = "-" if total == 0 else f"{lost[1] / total:.2%}"
    assert f"k=2 rate {shown}, share {lost[1] / everything:.2%}" in by_k


@pytest.mark.parametrize("name", ["P03", "P04"])
def test_field_case_clip_metric_has_a_sign(name):
    """Recomputed figures count a token only if the clip takes its gradient away."""
    case = CASES[name]
    ratios, advantages = case["input"]["ratios"], case["input"]["advantages"]
    import math

    groups = [
        a_group(0, [a_rollout(1.0, a_turn([1], [-math.log(ratio)], [0.0]), advantage=advantage)])
        for ratio, advantage in zip(ratios, advantages, strict=True)
    ]
    figures = staleness_figures({"groups": groups}, 0.8, 1.2)

    assert figures["staleness/clip_active"] == case["expected"]["fraction"]
