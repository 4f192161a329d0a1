"""Preflight: what can be known of gates and rule before a single rollout.

Effective contributors depend on prompts and tau alone, so that gate is certain. The baseline's
distance from the plain mean is computed under simulated rewards; if no simulation passes, that gate
counts as certain to fail. Where another tau would pass, the nearest on a grid is named.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.audit.acceptance import settle
from harness.audit.finding import Finding, bounds_of
from harness.audit.gates import within
from harness.audit.metrics.executed import MODEL, ROLLOUTS
from harness.audit.metrics.kernel_arms import CONTRIBUTORS, GAP, GROUP_SIZE
from harness.audit.power import power_report
from harness.audit.reachable import reachable_lines, unscored_lines
from harness.cards import Experiment, GateCheck
from harness.evidence import Evidence, Measured

Certain = tuple[GateCheck, str]
"""A gate that can't pass, and the line that says why."""


class TauForecast(Evidence):
    """The two gates that need no model, at one tau; None for a kernel that has none.

    `contributors_median` is pooled over all prompts of the pilot; `gaps` has mean |b - uniform|
    for each simulated set of rewards.
    """

    tau: float | None
    contributors_median: Measured
    gaps: list[Measured]


class ArmForecast(Evidence):
    """One arm with a similarity-weighted baseline, on the very prompts that its pilot will draw.

    `registered` is the card's tau, `grid` other ones in ascending order.
    """

    arm: str
    prompts: int
    steps: int
    registered: TauForecast
    grid: list[TauForecast]


class ForecastEvidence(Evidence):
    """What is known in advance of every arm with a similarity-weighted baseline."""

    arms: list[ArmForecast]
    reward_mean: float
    repeats: int


@dataclass
class Lines:
    """What a finding is made of, gathered."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def check(evidence: ForecastEvidence, experiment: Experiment) -> Finding:
    """Gates that are certain to fail, gates and rules that can't come out both ways, and power."""
    gates = experiment.gates
    lines = Lines()
    certain: list[Certain] = []
    wanted = [arm.name for arm in experiment.arms if arm.tfidf is not None]
    if [arm.arm for arm in evidence.arms] != wanted:
        lines.problems.append(
            f"arms {[arm.arm for arm in evidence.arms]} were forecast, {wanted} have a kernel; "
            "collect the forecast of each"
        )
    for arm in evidence.arms:
        certain.extend(arm_lines(arm, gates, lines))
    certain.extend(planned_lines(experiment, gates))
    for gate, line in certain:
        given_for = gate.model_dump(mode="json", include={"metric", "min", "max", "one_of"})
        settled = settle(experiment, "forecast", "gate_certain_to_fail", [line], given_for)
        lines.problems.extend(settled.problems)
        lines.notes.extend(settled.notes)

    impossible, possible = reachable_lines(experiment, gates)
    lines.problems.extend(impossible)
    lines.notes.extend(possible)
    lines.problems.extend(unscored_lines(experiment))

    lines.notes.extend(
        f"contrast: {name}: {', '.join(f'{role} {value}' for role, value in of.items())}"
        for name, of in experiment.contrast.items()
    )
    power = power_report(experiment)
    lines.problems.extend(power.problems)
    lines.notes.extend(power.notes)
    lines.metrics |= power.metrics
    return Finding("forecast", tuple(lines.problems), tuple(lines.notes), lines.metrics)


def arm_lines(arm: ArmForecast, gates: Sequence[GateCheck], lines: Lines) -> list[Certain]:
    """Report one arm's forecast into `lines`; returns the gates that are certain to fail."""
    here, gaps = arm.registered, sorted(arm.registered.gaps)
    middle = _median(gaps)
    lines.metrics |= {
        f"{arm.arm}.contributors_median": here.contributors_median,
        f"{arm.arm}.gap_median": middle,
        f"{arm.arm}.gap_min": gaps[0] if gaps else math.nan,
        f"{arm.arm}.gap_max": gaps[-1] if gaps else math.nan,
    }
    lines.notes.append(
        f"{arm.arm}: {arm.prompts} prompts of {arm.steps} pilot steps at {_at(here)}: "
        f"effective contributors median {here.contributors_median:.1f}; mean |b - uniform| "
        f"median {middle:.4f}, {gaps[0]:.4f} to {gaps[-1]:.4f} in {len(gaps)} simulations"
        if gaps
        else f"{arm.arm}: no rewards were simulated at {_at(here)}"
    )
    certain: list[Certain] = []
    for check in gates:
        if not certain_to_fail(here, check):
            continue
        shown, basis = (
            (here.contributors_median, f"on the {arm.prompts} prompts that the pilot will draw")
            if check.metric == CONTRIBUTORS
            else (middle, f"in the median of {len(gaps)} simulations, none of which passes")
        )
        line = (
            f"gate {check.metric} is certain to fail at {_at(here)}: {shown:.4g} {basis}, "
            f"bounds {bounds_of(check)}; {_advice(arm, gates)}"
        )
        certain.append((check, line))
    return certain


def certain_to_fail(forecast: TauForecast, check: GateCheck) -> bool:
    """Whether a gate can't pass at this tau, as far as prompts and simulated rewards tell."""
    if check.metric == CONTRIBUTORS:
        return not within(forecast.contributors_median, check)
    if check.metric == GAP:
        return not any(within(gap, check) for gap in forecast.gaps)
    return False


def nearest_passing(arm: ArmForecast, gates: Sequence[GateCheck]) -> TauForecast | None:
    """The tau of the grid nearest to the registered one (by ratio) at which both gates pass.

    The simulated gate passes if at least half of the simulations do.
    """
    passing = [point for point in arm.grid if all(_likely(point, check) for check in gates)]
    registered = arm.registered.tau
    if registered is None:
        return None

    def octaves(point: TauForecast) -> float:
        return math.inf if point.tau is None else abs(math.log(point.tau / registered))

    return min(passing, key=octaves, default=None)


def planned_lines(experiment: Experiment, gates: Sequence[GateCheck]) -> list[Certain]:
    """Gates that the plan itself would fail: counts and names that do not depend on rewards."""
    sizes = {arm.group_size for arm in experiment.arms if arm.tfidf is not None}
    rollouts = {arm.rollouts_per_step for arm in experiment.arms}
    planned: dict[str, list[float | str]] = {
        GROUP_SIZE: [float(size) for size in sorted(sizes)],
        ROLLOUTS: [float(number) for number in sorted(rollouts)],
        MODEL: [experiment.card.base_model],
    }
    return [
        (
            check,
            f"gate {check.metric} is certain to fail: {value!r} is planned, bounds "
            f"{bounds_of(check)}; make card and gate agree",
        )
        for check in gates
        for value in planned.get(check.metric, [])
        if not within(value, check)
    ]


def _likely(point: TauForecast, check: GateCheck) -> bool:
    if check.metric == GAP:
        return sum(within(gap, check) for gap in point.gaps) * 2 >= max(1, len(point.gaps))
    return not certain_to_fail(point, check)


def _advice(arm: ArmForecast, gates: Sequence[GateCheck]) -> str:
    point = nearest_passing(arm, gates)
    taus = [p.tau for p in [*arm.grid, arm.registered] if p.tau is not None]
    if not taus:
        return "the kernel has no tau to change; choose another similarity"
    if point is None:
        return f"no tau from {min(taus):.3g} to {max(taus):.3g} passes; choose another similarity"
    return (
        f"the nearest tau that would pass is about {point.tau:.3g} (contributors "
        f"{point.contributors_median:.4g}, mean |b - uniform| {_median(point.gaps):.3g}); "
        "register a card with it"
    )


def _at(forecast: TauForecast) -> str:
    return "cosine weights" if forecast.tau is None else f"tau {forecast.tau:g}"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    if not ordered:
        return math.nan
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0
