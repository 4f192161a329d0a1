"""Activation gates: the treatment did what it says, measured on what the pilot executed.

Every figure is counted from stored rollouts; none is read from a configuration. Where several arms
or steps each have a value, the worst is reported: the one that violates the bounds most, or comes
closest to them.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from harness.audit import staleness_gates
from harness.audit.finding import GateFinding, bounds_of
from harness.audit.pilot import (
    Pilot,
    groups,
    pilot_problems,
    step_advantages,
    step_rewards,
)
from harness.audit.staleness_gates import Unmeasurable
from harness.cards import Arm, Experiment, GateCheck
from harness.methods import uniform_loo
from harness.records import StepRecord

Values = Sequence[float] | Sequence[str]
Measurement = Callable[[Experiment, Pilot], Values]

REMEDY = {
    "gs1_executed_group_size": "give the GS1 arm group_size 1 and draw no prompt twice in a step",
    "rollouts_per_step_both_arms": "make group_size x groups_per_batch the registered number in "
    "both arms, and look for rollouts that were lost or sampled twice",
    "gs1_effective_contributors_median": "tau decides it: lower tau if the value is above the "
    "bound, raise it if below, in a new registration",
    "gs1_mean_abs_baseline_minus_uniform_loo": "the baseline is the batch mean in disguise: lower "
    "tau, or choose another similarity, in a new registration",
    "batch_mean_reward_pilot": "advantages vanish where nothing or everything is right: choose "
    "easier or harder prompts, or another base model",
    "executed_base_model": "train the model that the card names",
    **staleness_gates.REMEDY,
}


def check_gate(check: GateCheck, pilot: Pilot, experiment: Experiment) -> GateFinding:
    """One gate's executed value against its bounds.

    A metric without a measurement, a pilot that is not whole and a value that is not a finite
    number all fail the gate.
    """
    measurement = MEASUREMENTS.get(check.metric)
    if measurement is None:
        known = ", ".join(sorted(MEASUREMENTS))
        line = f"gate {check.metric}: no such measurement; use one of {known}"
        return GateFinding(check, None, (line,))
    broken = pilot_problems(experiment, pilot)
    if broken:
        return GateFinding(check, None, tuple(f"gate {check.metric}: {line}" for line in broken))
    try:
        values = measurement(experiment, pilot)
    except Unmeasurable as error:
        return GateFinding(check, None, (f"gate {check.metric}: {error}",))
    value = worst(values, check)
    if value is not None and within(value, check):
        return GateFinding(check, value)
    shown = f"{value:.6g}" if isinstance(value, float) else repr(value)
    line = (
        f"gate {check.metric}: {shown} was executed, bounds {bounds_of(check)} "
        f"({check.measures}); {REMEDY[check.metric]}"
    )
    return GateFinding(check, value, (line,))


def within(value: float | str, check: GateCheck) -> bool:
    """Whether a gate accepts a value; NaN never, and a gate without bounds accepts nothing."""
    if check.one_of is not None:
        return value in check.one_of
    if isinstance(value, str) or (check.min is None and check.max is None):
        return False
    low = -math.inf if check.min is None else check.min
    high = math.inf if check.max is None else check.max
    return math.isfinite(value) and low <= value <= high


def worst(values: Values, check: GateCheck) -> float | str | None:
    """The value that violates the bounds most, or comes closest to them; None of none."""
    names = sorted({value for value in values if isinstance(value, str)})
    if names:
        # several names in one run are themselves a violation
        return ", ".join(names)
    numbers = [value for value in values if isinstance(value, float)]
    if any(math.isnan(value) for value in numbers):
        return math.nan
    return min(numbers, key=lambda value: _slack(value, check), default=None)


def contributors_median(contributors: Sequence[Sequence[float]]) -> float:
    """The median of effective contributors, over all prompts of all steps pooled."""
    return float(np.median(np.concatenate([np.asarray(row) for row in contributors])))


def mean_abs_gap(
    rewards: Sequence[Sequence[float]], advantages: Sequence[Sequence[float]]
) -> float:
    """mean |b_i - uniform leave-one-out mean|, pooled over all rollouts of all steps.

    Args:
        rewards: per step, the rewards (P,).
        advantages: per step, r_i - b_i (P,), from which b_i is recovered.
    """
    gaps = [
        # b_i = r_i - A_i and u_i = r_i - U_i, so b_i - u_i = U_i - A_i
        np.abs(uniform_loo(rewards_P) - np.asarray(advantages_P))
        for rewards_P, advantages_P in zip(rewards, advantages, strict=True)
    ]
    return float(np.concatenate(gaps).mean())


def _group_sizes(experiment: Experiment, pilot: Pilot) -> Values:
    return [
        float(max(_rollouts_by_prompt(record).values()))
        for arm in gs1_arms(experiment)
        for record in pilot[arm.name]
    ]


def _rollouts_by_prompt(record: StepRecord) -> Counter[int]:
    # two groups of one prompt are one larger group, whatever they were called
    counts: Counter[int] = Counter()
    for group in record["groups"]:
        counts[group["prompt"]] += len(group["rewards_G"])
    return counts


def _rollouts(experiment: Experiment, pilot: Pilot) -> Values:
    return [
        float(len(step_rewards(record))) for arm in experiment.look(1) for record in pilot[arm.name]
    ]


def _contributors(experiment: Experiment, pilot: Pilot) -> Values:
    return [
        contributors_median([_kernel_row(arm, record) for record in pilot[arm.name]])
        for arm in gs1_arms(experiment)
    ]


def _kernel_row(arm: Arm, record: StepRecord) -> list[float]:
    kernel, prompts = record["kernel"], len(record["groups"])
    row = [] if kernel is None else kernel["contributors_P"]
    if len(row) != prompts or not all(map(math.isfinite, row)):
        raise Unmeasurable(
            f"arm {arm.name}: step {record['step']} recorded {len(row)} effective contributors "
            f"for {prompts} prompts, one finite number each expected; record the kernel's weights"
        )
    return row


def _gap(experiment: Experiment, pilot: Pilot) -> Values:
    for arm in gs1_arms(experiment):
        for record in pilot[arm.name]:
            if len(step_rewards(record)) < 2:
                raise Unmeasurable(
                    f"arm {arm.name}: step {record['step']} has 1 rollout, a leave-one-out mean "
                    "needs at least 2; sample more prompts"
                )
    return [
        mean_abs_gap(
            [step_rewards(record) for record in pilot[arm.name]],
            [step_advantages(record) for record in pilot[arm.name]],
        )
        for arm in gs1_arms(experiment)
    ]


def _mean_rewards(experiment: Experiment, pilot: Pilot) -> Values:
    # every arm by itself: a mean over both could hide one that has nothing to learn
    rewards = [
        [reward for group in groups(pilot[arm.name]) for reward in group["rewards_G"]]
        for arm in experiment.look(1)
    ]
    return [math.fsum(row) / len(row) for row in rewards]


def _models(experiment: Experiment, pilot: Pilot) -> Values:
    return [record["model"] for arm in experiment.look(1) for record in pilot[arm.name]]


def gs1_arms(experiment: Experiment) -> list[Arm]:
    """The arms whose baseline is weighted by prompt similarity.

    Raises:
        Unmeasurable: there is none.
    """
    arms = [arm for arm in experiment.look(1) if arm.estimator == "gs1"]
    if not arms:
        raise Unmeasurable("no arm has the estimator gs1; register one, or drop the gate")
    return arms


def _slack(value: float, check: GateCheck) -> float:
    """How far inside the bounds a value lies; negative outside."""
    below = math.inf if check.min is None else value - check.min
    above = math.inf if check.max is None else check.max - value
    return min(below, above)


MEASUREMENTS: dict[str, Measurement] = {
    "gs1_executed_group_size": _group_sizes,
    "rollouts_per_step_both_arms": _rollouts,
    "gs1_effective_contributors_median": _contributors,
    "gs1_mean_abs_baseline_minus_uniform_loo": _gap,
    "batch_mean_reward_pilot": _mean_rewards,
    "executed_base_model": _models,
    **staleness_gates.MEASUREMENTS,
}
