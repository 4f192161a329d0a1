"""Gates of arms that weigh prompts by a kernel, as GS1 does: was it selective, or a plain mean?"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from harness.audit.metrics.executed import worst_reward
from harness.audit.metrics.metric import Range, Unmeasurable, Values, at_least, gate_metric
from harness.audit.pilot import Executed, step_advantages, step_rewards
from harness.cards import Arm, Experiment
from harness.methods import uniform_loo
from harness.records import StepRecord

GROUP_SIZE = "gs1_executed_group_size"
CONTRIBUTORS = "gs1_effective_contributors_median"
GAP = "gs1_mean_abs_baseline_minus_uniform_loo"


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


@gate_metric(
    GROUP_SIZE,
    unit="rollouts a prompt",
    range=at_least(1, whole=True),
    remedy="give the GS1 arm group_size 1 and draw no prompt twice in a step",
)
def group_sizes(pilot: Executed) -> Values:
    """Rollouts of the prompt that had most, in each step of arms with a kernel."""
    return [
        float(max(_rollouts_by_prompt(record).values()))
        for _, records in _kernel_arms(pilot)
        for record in records
    ]


def _contributors_range(experiment: Experiment) -> Range:
    prompts = max(arm.groups_per_batch for arm in experiment.arms)
    return Range(1.0, float(max(1, prompts - 1)))


@gate_metric(
    CONTRIBUTORS,
    unit="prompts",
    range=_contributors_range,
    remedy="tau decides it: lower tau if the value is above the bound, raise it if below, in a new "
    "registration",
)
def contributors(pilot: Executed) -> Values:
    """The median of effective contributors of each arm with a kernel."""
    return [
        contributors_median([_kernel_row(arm, record) for record in records])
        for arm, records in _kernel_arms(pilot)
    ]


@gate_metric(
    GAP,
    unit="of reward",
    range=lambda experiment: Range(0.0, 1.0 - worst_reward(experiment)),
    remedy="the baseline is the batch mean in disguise: lower tau, or choose another similarity, "
    "in a new registration",
)
def gaps(pilot: Executed) -> Values:
    """mean |b - uniform leave-one-out mean| of each arm with a kernel."""
    arms = _kernel_arms(pilot)
    for arm, records in arms:
        for record in records:
            if len(step_rewards(record)) < 2:
                raise Unmeasurable(
                    f"arm {arm.name}: step {record['step']} has 1 rollout, a leave-one-out mean "
                    "needs at least 2; sample more prompts"
                )
    return [
        mean_abs_gap(
            [step_rewards(record) for record in records],
            [step_advantages(record) for record in records],
        )
        for _, records in arms
    ]


METRICS = (group_sizes, contributors, gaps)


def _rollouts_by_prompt(record: StepRecord) -> Counter[int]:
    # two groups of one prompt are one larger group, whatever they were called
    counts: Counter[int] = Counter()
    for group in record["groups"]:
        counts[group["prompt"]] += len(group["rollouts"])
    return counts


def _kernel_arms(pilot: Executed) -> list[tuple[Arm, Sequence[StepRecord]]]:
    arms = [(arm, records) for arm, records in pilot.arms if arm.declared.kernel == "registered"]
    if not arms:
        raise Unmeasurable("no arm weighs prompts by a kernel; register one, or drop the gate")
    return arms


def _kernel_row(arm: Arm, record: StepRecord) -> list[float]:
    kernel, prompts = record["kernel"], len(record["groups"])
    row = [] if kernel is None else kernel["contributors_P"]
    if len(row) != prompts or not all(map(math.isfinite, row)):
        raise Unmeasurable(
            f"arm {arm.name}: step {record['step']} recorded {len(row)} effective contributors "
            f"for {prompts} prompts, one finite number each expected; record the kernel's weights"
        )
    return row
