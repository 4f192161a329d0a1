"""Figures of one step, from its stored rollouts."""

import math
import statistics
from collections.abc import Mapping, Sequence

from harness.errors import RunError
from harness.methods.beff import executed_noise
from harness.methods.staleness import zero_variance_share
from harness.records import (
    GroupRecord,
    Rollout,
    StepRecord,
    advantages_of,
    learner_logprobs_of,
    logprobs_of,
    rewards_of,
)

GRADES = ("correct", "format")
"""Scores that are figures of a step under their own names; those of other names are prefixed."""

EPISODE = "episode/"

GRAD_NORM = "service/grad_norm"
"""The norm of the step's gradient, where the service reports it with optim_step."""


def step_metrics(
    where: str,
    groups: Sequence[GroupRecord],
    forward: Mapping[str, float],
    optimizer: Mapping[str, float],
) -> dict[str, float]:
    """Means over the step's rollouts, and what the service reported.

    `reward` and the task's scores are means over rollouts, scores other than `correct` and `format`
    under `episode/`; `stopped` is the share of rollouts whose last turn ended by itself;
    `zero_variance_groups` is the share of groups whose rewards are all equal; `tokens` counts
    action tokens; `kl_behaviour_learner` is the k1 estimate, the mean of behaviour minus learner
    log-prob over action tokens, in nats; `entropy` is the mean of minus the behaviour log-prob. The
    service's own figures are prefixed with `service/`; `where` names arm and step in errors.

    Raises:
        RunError: a figure is not a finite number, or rollouts have scores of different names.
    """
    rollouts = [rollout for group in groups for rollout in group["rollouts"]]
    rewards = [rollout["reward"] for rollout in rollouts]
    behaviour = [x for rollout in rollouts for x in logprobs_of(rollout)]
    learner = [x for rollout in rollouts for x in learner_logprobs_of(rollout)]
    gaps = [old - new for old, new in zip(behaviour, learner, strict=True)]
    metrics = {
        "reward": math.fsum(rewards) / len(rewards),
        **_scores(where, rollouts),
        "stopped": _share([rollout["turns"][-1]["stop"] == "stop" for rollout in rollouts]),
        "zero_variance_groups": zero_variance_share([rewards_of(group) for group in groups]),
        "rollouts": float(len(rewards)),
        "tokens": float(len(behaviour)),
        "kl_behaviour_learner": math.fsum(gaps) / len(gaps),
        "max_abs_logprob_gap": max(abs(gap) for gap in gaps),
        "entropy": -math.fsum(behaviour) / len(behaviour),
        **{f"service/{name}": float(value) for name, value in {**forward, **optimizer}.items()},
    }
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise RunError(
                f"{where}: metric {name} is {value}, not a finite number; look at the service's "
                "log, or lower the learning rate"
            )
    return metrics


def training_note(arm: str, records: Sequence[StepRecord]) -> str:
    """Reward and gradient norm over the steps of one arm; the variance has ddof 1.

    The norm is of the step's whole gradient, as the service reports it with the update.
    """
    rewards = [record["metrics"]["reward"] for record in records]
    norms = [r["metrics"][GRAD_NORM] for r in records if GRAD_NORM in r["metrics"]]
    ends = max(1, min(10, len(rewards) // 2))
    text = (
        f"{arm}: train reward {statistics.fmean(rewards[:ends]):.4f} over the first {ends} steps, "
        f"{statistics.fmean(rewards[-ends:]):.4f} over the last"
    )
    if len(norms) < 2 or len(norms) < len(records):
        return f"{text}; the service reports no gradient norm for every step"
    variance = statistics.variance(norms)
    return (
        f"{text}; gradient norm mean {statistics.fmean(norms):.5g}, variance over "
        f"{len(norms)} steps {variance:.5g}"
    )


def beff_note(arm: str, records: Sequence[StepRecord]) -> str:
    """Whether an arm's kernel was the better baseline on these steps: a diagnostic."""
    noises = [
        executed_noise(
            [rewards_of(group)[0] for group in record["groups"]],
            [advantages_of(group)[0] for group in record["groups"]],
        )
        for record in records
    ]
    # of all steps together; NaN where the kernel leaves no noise
    kernel = math.fsum(noise.kernel for noise in noises)
    ratio = math.fsum(noise.uniform for noise in noises) / kernel if kernel else math.nan
    return (
        f"B_eff (ours, diagnostic) of {arm} on {len(noises)} pilot steps: "
        f"V(uniform leave-one-out) / V(kernel) = {ratio:.4f}, "
        f"above 1 if the kernel is the better baseline; {noises[0].note}"
    )


def gap_note(arm: str, records: Sequence[StepRecord]) -> str:
    """How far the service's sampler is from its learner, where both have the same weights."""
    gap = max(record["metrics"]["max_abs_logprob_gap"] for record in records)
    return (
        f"{arm}: log-probs of sampler and learner, at the same weights, differ by at most "
        f"{gap:.2g} nats on the pilot's tokens"
    )


def _scores(where: str, rollouts: Sequence[Rollout]) -> dict[str, float]:
    scores = [rollout["scores"] for rollout in rollouts]
    for each in scores:
        if each.keys() != scores[0].keys():
            raise RunError(
                f"{where}: one rollout has the scores {', '.join(each)}, another "
                f"{', '.join(scores[0])}; let the task score every episode by the same names"
            )
    means = {name: math.fsum(each[name] for each in scores) / len(scores) for name in scores[0]}
    return {name if name in GRADES else f"{EPISODE}{name}": x for name, x in means.items()}


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
