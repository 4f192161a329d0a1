"""Every gate can come out both ways: a value that passes and one that fails, both reachable."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.audit.finding import bounds_of
from harness.audit.gates import MEASUREMENTS
from harness.cards import Experiment, GateCheck
from harness.names import ACCURACY
from harness.tasks.sec_search.metrics import FIGURES
from harness.tasks.sec_search.reward import EMPTY_REWARD


@dataclass(frozen=True)
class Range:
    """The values that a metric can take at all, both ends included."""

    low: float
    high: float
    whole: bool = False


def reachable_lines(
    experiment: Experiment, gates: Sequence[GateCheck]
) -> tuple[list[str], list[str]]:
    """(problems, notes): gates that can't come out both ways, and examples for those that can."""
    ranges = metric_ranges(experiment)
    problems, notes = [], []
    for check in gates:
        if check.metric not in MEASUREMENTS:
            known = ", ".join(sorted(MEASUREMENTS))
            problems.append(f"gate {check.metric}: no such measurement; use one of {known}")
            continue
        range_ = ranges.get(check.metric)
        passes, fails = _names(check) if range_ is None else _numbers(check, range_)
        for example, verb in ((passes, "passes"), (fails, "fails")):
            if example is None:
                problems.append(
                    f"gate {check.metric}: no reachable value {verb}, bounds {bounds_of(check)}; "
                    "such a gate tests nothing, change its bounds"
                )
        if passes is not None and fails is not None:
            notes.append(
                f"gate {check.metric}, bounds {bounds_of(check)}: {passes} would pass, "
                f"{fails} would fail"
            )
    return problems, notes


def unscored_lines(experiment: Experiment) -> list[str]:
    """Criteria that compare a score which no evaluated item or episode has, supporting ones too.

    What training steps measure is known once there is a step.
    """
    search = experiment.registration.search is not None
    scores, of_k = (FIGURES, r"(.+)_best_of_\d+") if search else (ACCURACY, r"(pass)@\d+")
    names = [*scores, "<one of these>_best_of_<k>" if search else "pass@<k>"]
    problems = []
    for criterion in (*experiment.rule.criteria, *experiment.registration.supporting):
        best = re.fullmatch(of_k, criterion.metric)
        known = "/" in criterion.metric or criterion.metric in scores
        if not known and not (best and (not search or best[1] in scores)):
            problems.append(
                f"criterion {criterion.id}: no evaluated item has {criterion.metric!r}; register "
                f"one of {', '.join(names)}, or a figure of training steps, whose name has a '/'"
            )
    return problems


def metric_ranges(experiment: Experiment) -> dict[str, Range]:
    """What each numeric metric can be, whatever the arms do."""
    prompts = max(arm.groups_per_batch for arm in experiment.arms)
    worst = worst_reward(experiment)
    return {
        "gs1_executed_group_size": Range(1, math.inf, whole=True),
        "rollouts_per_step_both_arms": Range(1, math.inf, whole=True),
        "gs1_effective_contributors_median": Range(1.0, float(max(1, prompts - 1))),
        "gs1_mean_abs_baseline_minus_uniform_loo": Range(0.0, 1.0 - worst),
        "batch_mean_reward_pilot": Range(worst, 1.0),
        "executed_lag_error": Range(0, math.inf, whole=True),
        "lag0_max_abs_log_ratio": Range(0.0, math.inf),
        "lag0_clip_fraction": Range(0.0, 1.0),
        "lag0_kl": Range(0.0, math.inf),
        "lagged_kl": Range(0.0, math.inf),
        "lagged_clip_fraction": Range(0.0, 1.0),
        "logged_metrics_error": Range(0.0, math.inf),
        "reported_loss_error": Range(0.0, math.inf),
        "executed_advantage_error": Range(0.0, math.inf),
        "executed_drop_error": Range(0, math.inf, whole=True),
        "executed_turn_error": Range(0, math.inf, whole=True),
    }


def worst_reward(experiment: Experiment) -> float:
    """The least reward of an episode: a wrong answer in a wrong format, or nothing curated."""
    registration = experiment.registration
    if registration.search is not None:
        return EMPTY_REWARD
    return -registration.training.format_coefficient


def _numbers(check: GateCheck, range_: Range) -> tuple[str | None, str | None]:
    if check.one_of is not None or (check.min is None and check.max is None):
        return None, f"{range_.low:g}"
    low = range_.low if check.min is None else max(range_.low, check.min)
    high = range_.high if check.max is None else min(range_.high, check.max)
    if range_.whole:
        low, high = float(math.ceil(low)), math.floor(high) if math.isfinite(high) else high
    passes = f"{low:g}" if low <= high else None
    if check.min is not None and range_.low < check.min:
        return passes, f"{range_.low:g}"
    if check.max is not None and range_.high > check.max:
        beyond = check.max + 1.0 if math.isinf(range_.high) else range_.high
        return passes, f"{beyond:g}"
    return passes, None


def _names(check: GateCheck) -> tuple[str | None, str | None]:
    return (repr(check.one_of[0]) if check.one_of else None), "any other name"
