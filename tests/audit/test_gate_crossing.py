"""Every gate metric on every kind of arm, with and without a second look: a finding, always."""

import dataclasses
import itertools
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

from lagged import TEXTS, episodes, measure, measure_kept, record
from rollouts import set_advantages, set_rewards, turns_of

from harness.audit.gates import METRICS, check_gate
from harness.audit.reachable import reachable_lines
from harness.cards import GateCheck, load_experiment
from harness.cards.registration import ArmSpec
from harness.estimators import DECLARED
from harness.methods import uniform_loo
from harness.records import rewards_of

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
STEPS, LAG, ROLLOUTS = 4, 3, 8
GROUP_ESTIMATORS = [each.name for each in DECLARED if each.kernel == "none"]
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
SETTINGS = {"group_std": {"ddof": 1.0, "eps": 1e-6}, "tail_quantile": {"quantile": 0.75}}
KERNEL = {"text": "question", "fitted_on": "train_questions", "ngram_range": (1, 1)}
KERNEL |= {"lowercase": True, "sublinear_tf": False, "stop_words": "none"}
WEIGHTINGS = {
    "gs1": {**KERNEL, "weighting": "softmax", "tau": 0.1},
    "gs1_cosine": {**KERNEL, "weighting": "cosine", "tau": None},
}


class Kind(NamedTuple):
    """What the arms of a cell are like."""

    estimator: str
    lag: int
    turns: str
    drops: bool

    @property
    def alone(self):
        """Whether each prompt has one rollout."""
        return self.estimator not in GROUP_ESTIMATORS

    @property
    def kernel(self):
        """Whether prompts are weighed by their texts."""
        return self.estimator in WEIGHTINGS


KINDS = [
    kind
    for kind in itertools.starmap(
        Kind,
        itertools.product(
            (*GROUP_ESTIMATORS, "uniform_loo", *WEIGHTINGS),
            (0, LAG),
            ("one reply", "several turns"),
            (False, True),
        ),
    )
    # a group of one has equal rewards: where those are dropped, nothing is left to train on
    if not (kind.drops and kind.alone)
]
LOOKS = (1, 2)
ROWS = pytest.mark.parametrize(
    ("kind", "looks"),
    [
        pytest.param(kind, looks, id=f"{'-'.join(map(str, kind))}-{looks}")
        for kind, looks in itertools.product(KINDS, LOOKS)
    ],
)

BOUNDS = {
    "gs1_executed_group_size": {"min": 1, "max": 1},
    "rollouts_per_step_both_arms": {"min": ROLLOUTS, "max": ROLLOUTS},
    "gs1_effective_contributors_median": {"min": 1.5, "max": ROLLOUTS - 1},
    "gs1_mean_abs_baseline_minus_uniform_loo": {"min": 1e-4},
    "batch_mean_reward_pilot": {"min": 0.05, "max": 0.95},
    "executed_base_model": {"one_of": ["m"]},
    "executed_lag_error": {"max": 0},
    "lag0_max_abs_log_ratio": {"max": 1e-6},
    "lag0_clip_fraction": {"max": 0.0},
    "lag0_kl": {"max": 1e-9},
    "lagged_kl": {"min": 1e-6},
    "lagged_clip_fraction": {"min": 1e-4},
    "logged_metrics_error": {"max": 1e-9},
    "reported_loss_error": {"max": 1e-9},
    "executed_advantage_error": {"max": 1e-9},
    "executed_drop_error": {"max": 0},
    "executed_turn_error": {"max": 0},
}


def gate(metric):
    """The gate that honest records pass."""
    return GateCheck(metric=metric, measures="something", **BOUNDS[metric])


def measurable(metric, kind):
    """Whether arms of this kind have the figure at all."""
    if metric.startswith("gs1_"):
        return kind.kernel
    if metric.startswith(("lag0_", "lagged_")):
        return metric.startswith("lagged_") == (kind.lag > 0)
    return {
        "executed_drop_error": kind.drops,
        "executed_turn_error": kind.turns == "several turns",
    }.get(metric, True)


@cache
def base():
    """A registered experiment, of which only the arms are replaced."""
    return load_experiment(CARDS / "maxrl_lag4_clip_mass_gsm8k_08b.json", "embedded")


@cache
def cell(kind, looks):
    """Two arms of a kind in each look."""
    size = 1 if kind.alone else 4
    schedule = {"group_size": size, "groups_per_batch": ROLLOUTS // size, "steps": 8}
    specs = [
        ArmSpec.model_validate(
            {
                "name": f"{role}_{look}",
                "role": role,
                "estimator": "gs1" if kind.kernel else kind.estimator,
                "estimator_config": SETTINGS.get(kind.estimator, {}),
                "kernel": WEIGHTINGS.get(kind.estimator),
                "schedule": {**schedule, "seed": look, "learning_rate": 1e-3},
                "loss": "ppo",
                "loss_config": CLIP,
                "lag": kind.lag,
                "look": look,
            }
        )
        for look, role in itertools.product(range(1, looks + 1), ("treatment", "baseline"))
    ]
    training = {"pilot_steps": STEPS, "drop_zero_variance_groups": kind.drops}
    registration = base().registration
    changed = registration.model_copy(
        update={"arms": specs, "training": registration.training.model_copy(update=training)}
    )
    return dataclasses.replace(base(), registration=changed)


@cache
def honest(kind, name):
    """The steps of an arm that did what it is registered to do."""
    arm = cell(kind, LOOKS[-1]).arm(name)
    made = [(record if kind.turns == "one reply" else episodes)(arm, s) for s in range(STEPS)]
    for each in made:
        (measure_kept if kind.drops else measure)(arm, each)
    return made


def piloted(kind, looks=1, spoilt="treatment_1"):
    """The pilot of the arms of these looks; one of them is free to be spoilt."""
    pilot = {arm.name: honest(kind, arm.name) for arm in cell(kind, looks).arms}
    return pilot | {spoilt: orjson.loads(orjson.dumps(pilot[spoilt]))}


@ROWS
def test_every_gate_of_every_kind_of_arm_ends_in_a_finding(kind, looks):
    """Honest records pass whatever has the figure; what has none is told so in one line."""
    pilot = {arm.name: honest(kind, arm.name) for arm in cell(kind, 1).arms}
    findings = {m: check_gate(gate(m), pilot, cell(kind, looks), TEXTS) for m in METRICS}

    passed = {metric: finding.ok for metric, finding in findings.items()}
    assert passed == {metric: measurable(metric, kind) for metric in METRICS}
    for finding in findings.values():
        assert (finding.value is None) == (not finding.ok)
        assert finding.ok or (len(finding.problems), finding.sentence.count("\n")) == (1, 0)


def same_prompt(_, made):
    """A prompt is drawn twice in a step."""
    made["groups"][1]["prompt"] = made["groups"][0]["prompt"]


def lost_group(_, made):
    """A prompt's rollouts are missing."""
    made["groups"].pop()


def one_neighbour(_, made):
    """The kernel looks at one other prompt alone."""
    made["kernel"]["contributors_P"] = [1.0] * ROLLOUTS


def uniform(_, made):
    """The batch mean under the kernel's name."""
    for group, advantage in zip(made["groups"], uniform_loo(_rewards(made)), strict=True):
        set_advantages(group, [advantage])


def all_right(_, made):
    """Nothing is left to learn."""
    for group in made["groups"]:
        set_rewards(group, [1.0] * len(group["rollouts"]))


def other_model(_, made):
    """Another model is trained."""
    made["model"] = "other"


def other_version(pilot_arm, made):
    """The sampler holds weights one update away from the registered ones."""
    arm, records = pilot_arm
    other = made["sampled_version"] + (1 if arm.lag else -1)
    if made["step"] > 0:  # the first step's prints are the service's noise floor
        made["fingerprints"]["sampler_T"] = records[other]["fingerprints"]["learner_T"]


def other_policy(pilot_arm, made):
    """Fresh behaviour log-probs are those of another policy."""
    for group in made["groups"]:
        for turn in turns_of(group):
            turn["logprobs_T"] = [x - 0.5 for x in turn["learner_logprobs_T"]]
    measure(pilot_arm[0], made)


def learners_logprobs(pilot_arm, made):
    """Stale behaviour log-probs are replaced by the learner's."""
    for group in made["groups"]:
        for turn in turns_of(group):
            turn["logprobs_T"] = turn["learner_logprobs_T"]
    measure(pilot_arm[0], made)


def wrong_figure(_, made):
    """A figure is logged that the rollouts do not have."""
    made["metrics"]["staleness/kl_k3"] += 0.1


def wrong_loss(_, made):
    """The service reports another loss."""
    made["metrics"]["service/loss:sum"] += 100.0


def wrong_advantage(_, made):
    """One advantage is not the estimator's."""
    made["groups"][0]["rollouts"][0]["advantage"] += 0.1


def wrong_drop(_, made):
    """A group is said to be dropped that was not, or the other way."""
    made["groups"][0]["dropped"] = not made["groups"][0]["dropped"]


def wrong_turns(_, made):
    """An episode says that it had one turn more."""
    made["groups"][0]["rollouts"][0]["scores"]["turns"] += 1


PLANTED = {
    "gs1_executed_group_size": same_prompt,
    "rollouts_per_step_both_arms": lost_group,
    "gs1_effective_contributors_median": one_neighbour,
    "gs1_mean_abs_baseline_minus_uniform_loo": uniform,
    "batch_mean_reward_pilot": all_right,
    "executed_base_model": other_model,
    "executed_lag_error": other_version,
    "lag0_max_abs_log_ratio": other_policy,
    "lag0_clip_fraction": other_policy,
    "lag0_kl": other_policy,
    "lagged_kl": learners_logprobs,
    "lagged_clip_fraction": learners_logprobs,
    "logged_metrics_error": wrong_figure,
    "reported_loss_error": wrong_loss,
    "executed_advantage_error": wrong_advantage,
    "executed_drop_error": wrong_drop,
    "executed_turn_error": wrong_turns,
}


@ROWS
def test_every_gate_fails_on_a_planted_mistake(kind, looks):
    """In the last arm that the pilot holds, the second look's where it was taken."""
    arm = cell(kind, looks).arms[-1]
    for metric in (metric for metric in METRICS if measurable(metric, kind)):
        pilot = piloted(kind, looks, arm.name)
        for made in pilot[arm.name]:
            PLANTED[metric]((arm, pilot[arm.name]), made)
        finding = check_gate(gate(metric), pilot, cell(kind, looks), TEXTS)

        assert finding.value is not None, finding.sentence
        assert not finding.ok, metric
        assert len(finding.problems) == 1
        assert METRICS[metric].unit in finding.sentence
        assert finding.sentence.endswith(METRICS[metric].remedy)


def test_the_table_has_every_metric_and_each_can_come_out_both_ways():
    """A metric that is added is in the table, and its range holds values inside and outside."""
    gs1 = cell(Kind("gs1", 0, "one reply", False), 1)

    assert METRICS.keys() == BOUNDS.keys() == PLANTED.keys()
    assert reachable_lines(gs1, [gate(metric) for metric in METRICS])[0] == []


BATCH = [kind for kind in KINDS if kind.alone and not kind.lag and kind.turns == "one reply"]


@pytest.mark.parametrize("kind", BATCH, ids=lambda kind: kind.estimator)
def test_a_baseline_of_other_weights_is_caught_though_advantages_follow_from_it(kind):
    """Advantages that agree with the recorded baseline do not vouch for the baseline."""
    pilot = piloted(kind)
    made = pilot["treatment_1"][2]
    made["kernel"]["baselines_P"][4] += 0.1
    made["groups"][4]["rollouts"][0]["advantage"] -= 0.1

    assert not check_gate(gate("executed_advantage_error"), pilot, cell(kind, 1), TEXTS).ok


def test_a_kernel_at_another_tau_is_caught_by_the_texts():
    """Baselines at three times the temperature, recorded and used alike, are not the texts'."""
    kind = Kind("gs1", 0, "one reply", False)
    arm = cell(kind, 1).arm("treatment_1")
    warm = dataclasses.replace(arm, kernel=arm.kernel.model_copy(update={"tau": 0.3}))
    pilot = piloted(kind) | {"treatment_1": [record(warm, step) for step in range(STEPS)]}

    assert not check_gate(gate("executed_advantage_error"), pilot, cell(kind, 1), TEXTS).ok
    assert check_gate(gate("executed_advantage_error"), pilot, cell(kind, 1)).ok


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda made: made.update(kernel=None), "recorded 0 baselines for 8 prompts"),
        (lambda made: made["kernel"]["baselines_P"].pop(), "recorded 7 baselines"),
        (lambda made: made["groups"][3].update(prompt=9999), "drew a prompt that is none of the"),
        (lambda made: made["groups"][3].update(requested=0), "0 rollouts requested"),
        (lambda made: _log_probs(made).pop(), "log-probs of the sampler"),
        (lambda made: _log_probs(made).append(float("nan")), "log-probs of"),
        (lambda made: _log_probs(made).__setitem__(0, float("nan")), "nan nats apart"),
        (lambda made: _log_probs(made).__setitem__(0, -9999.0), "nats apart, bound 600"),
    ],
)
def test_records_that_nothing_can_be_computed_of_are_told_in_one_line(spoil, words):
    """A finding, and no exception, whatever a step has left out."""
    kind = Kind("gs1", 0, "one reply", False)
    pilot = piloted(kind)
    spoil(pilot["treatment_1"][2])
    finding = check_gate(gate("executed_advantage_error"), pilot, cell(kind, 1), TEXTS)

    assert len(finding.problems) == 1
    assert words in finding.sentence


def test_an_arm_that_is_not_registered_fails_every_gate():
    """Records of an arm that no one asked for are no part of the pilot."""
    kind = Kind("rloo", 0, "one reply", False)
    pilot = piloted(kind)
    pilot["another"] = pilot["treatment_1"]

    finding = check_gate(gate("batch_mean_reward_pilot"), pilot, cell(kind, 1))
    assert "arm another: the pilot holds it, the registration does not" in finding.sentence


def _rewards(made):
    return [reward for group in made["groups"] for reward in rewards_of(group)]


def _log_probs(made):
    return made["groups"][3]["rollouts"][0]["turns"][0]["logprobs_T"]
