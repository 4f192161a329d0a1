"""Preflight: what was measured, times what the card asks for, fits the card's budget."""

import math

from harness.audit.finding import Finding
from harness.audit.throw_away import ThrowAwayEvidence
from harness.cards import Experiment

PHASES = ("sample", "train", "snapshot")


def check(evidence: ThrowAwayEvidence, experiment: Experiment) -> Finding:
    """Predicted wall time and GPU-hours, arms one after another, against the budget."""
    problems = measurement_problems(evidence, experiment)
    if problems:
        return Finding("feasibility", tuple(problems))
    card = experiment.card
    seconds = {steps.arm: _mean(steps.seconds) for steps in evidence.arms}
    training = sum(arm.steps * sum(seconds[arm.name].values()) for arm in experiment.arms)
    evaluations = len(experiment.arms) + 1
    per_item = evidence.evaluation_seconds / evidence.evaluated
    evaluating = evaluations * card.eval.n_examples * per_item
    wall_minutes = (training + evaluating) / 60.0
    gpu_hours = wall_minutes / 60.0 * experiment.registration.feasibility.gpus
    measured = "; ".join(
        f"{arm} " + ", ".join(f"{phase} {value:.3g} s" for phase, value in phases.items())
        for arm, phases in seconds.items()
    )
    figures = f"measured per step: {measured}; {per_item:.3g} s per evaluated item"
    for what, predicted, budget, unit in (
        ("wall time", wall_minutes, card.budget.max_wall_minutes, "minutes"),
        ("GPU time", gpu_hours, card.budget.gpu_hours, "GPU-hours"),
    ):
        if not predicted <= budget:
            problems.append(
                f"{what}: {predicted:.3g} {unit} predicted, budget {budget:g} ({figures}); "
                "use a faster service, or register a card with fewer steps or a larger budget"
            )
    later = len(experiment.look(2))
    notes = (
        figures,
        *([f"all {later} arms of the second look are counted in"] if later else []),
        f"predicted, arms one after another: {training:.3g} s of training, {evaluating:.3g} s for "
        f"{evaluations} evaluations of {card.eval.n_examples} items, {wall_minutes:.3g} of "
        f"{card.budget.max_wall_minutes:g} minutes, {gpu_hours:.3g} of "
        f"{card.budget.gpu_hours:g} GPU-hours",
        "responses may grow longer while the arms train; the run stops at the wall cap",
    )
    metrics = {
        "predicted_wall_minutes": wall_minutes,
        "predicted_gpu_hours": gpu_hours,
        "predicted_training_seconds": training,
        "predicted_evaluation_seconds": evaluating,
        "evaluation_seconds_per_item": per_item,
    }
    metrics |= {
        f"{arm}.{phase}_seconds": value
        for arm, phases in seconds.items()
        for phase, value in phases.items()
    }
    return Finding("feasibility", tuple(problems), notes, metrics)


def measurement_problems(evidence: ThrowAwayEvidence, experiment: Experiment) -> list[str]:
    """What is missing from the measurement, or can't be a duration."""
    timed = experiment.registration.feasibility.timed_steps
    by_name = {steps.arm: steps for steps in evidence.arms}
    problems = []
    for arm in experiment.arms:
        steps = by_name.get(arm.name)
        count = len(steps.seconds) if steps is not None else 0
        if count < timed:
            problems.append(
                f"arm {arm.name}: {count} steps were timed, {timed} registered; time them"
            )
        for phases in steps.seconds if steps is not None else ():
            bad = [p for p in PHASES if not 0.0 < phases.get(p, math.nan) < math.inf]
            if bad:
                problems.append(
                    f"arm {arm.name}: no duration for {', '.join(bad)}; every phase takes a finite "
                    "time above 0, measure it"
                )
    if evidence.evaluated < 1 or not 0.0 < evidence.evaluation_seconds < math.inf:
        problems.append(
            f"evaluation: {evidence.evaluated} items in {evidence.evaluation_seconds:g} s; "
            "time at least 1 item"
        )
    return problems


def _mean(seconds: list[dict[str, float]]) -> dict[str, float]:
    return {phase: sum(phases[phase] for phases in seconds) / len(seconds) for phase in PHASES}
