"""What this experiment asks of its pilot, of its data, and of its result."""

import math
from statistics import NormalDist

from harness import (
    Evidence,
    Executed,
    Finding,
    Interval,
    Unmeasurable,
    decision_method,
    gate_metric,
    preflight,
)


@gate_metric(unit="of reward", range=(0.0, 1.1), remedy="lower near: peers hide the running mean")
def baseline_spread(pilot: Executed):
    """The largest distance of two baselines in each step of the treatment."""
    arms = [records for arm, records in pilot.arms if arm.estimator == "running_mean"]
    if not arms:
        raise Unmeasurable("no arm has a running mean; register one")
    spreads = []
    for record in (record for records in arms for record in records):
        rollouts = [rollout for group in record["groups"] for rollout in group["rollouts"]]
        baselines = [rollout["reward"] - rollout["advantage"] for rollout in rollouts]
        spreads.append(max(baselines) - min(baselines))
    return spreads


class Lengths(Evidence):
    """Words of the shortest and of the longest train question."""

    shortest: int
    longest: int


def measured(context):
    """Read them off the train split."""
    words = [len(item.question.split()) for item in context.task().train]
    return Lengths(shortest=min(words), longest=max(words))


@preflight(evidence=Lengths, collect=measured)
def lengths_differ(evidence, _experiment):
    """A kernel of lengths needs lengths that differ."""
    if evidence.shortest < evidence.longest:
        return Finding("lengths_differ", metrics={"longest": float(evidence.longest)})
    line = f"all questions have {evidence.longest} words; choose another kernel"
    return Finding("lengths_differ", problems=(line,))


def by_hand(sample, criterion):
    """The same limits, from sums."""
    z, n = [float(x) for x in sample.z_N], len(sample.z_N)
    mean = math.fsum(z) / n
    se = math.sqrt(math.fsum((x - mean) ** 2 for x in z) / (n - 1) / n)
    half = NormalDist().inv_cdf(1.0 - criterion.alpha / criterion.sides) * se
    return Interval(mean, mean - half, mean + half, n)


@decision_method(finite_sample_valid=False, reference=by_hand, min_n=2, any_spread=True)
def paired_normal(sample, criterion):
    """mean +- z * sd / sqrt(n), by the central limit theorem."""
    mean, n = float(sample.z_N.mean()), sample.z_N.size
    half = NormalDist().inv_cdf(1.0 - criterion.alpha / criterion.sides)
    half *= float(sample.z_N.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)
