"""Verdicts in words. Each names the margin, the direction and what it speaks of."""

from collections.abc import Mapping, Sequence

from harness.decisions.criterion import Criterion, Unit
from harness.decisions.outcome import Verdict
from harness.statistics.intervals import Interval

_MEANING = {
    Verdict.VALIDATED: "lies above the margin",
    Verdict.REFUTED: "lies below the margin",
    Verdict.INCONCLUSIVE: "was shown to lie neither above nor below the margin",
}


def decided(criterion: Criterion, verdict: Verdict, interval: Interval) -> str:
    """Return the sentence of a verdict that data have set."""
    sided = "two" if criterion.sides == 2 else "one"
    level = f"{100 * (1 - criterion.alpha):g}% {sided}-sided {criterion.method}, n={interval.n}"
    raw = f"{interval.estimate:+.6g}, limits [{interval.lower:+.6g}, {interval.upper:+.6g}]"
    margin, shown = f"{criterion.margin:+g}", raw
    if in_points(criterion):
        shown = f"{100 * interval.estimate:+.2f}, limits {limits_text(criterion, interval)}"
        shown += f" (raw {raw}, margin {margin})"
        margin = points(criterion.margin)
    return (
        f"{verdict}: {criterion.metric} of {contrast_text(criterion.contrast().weights)}, for"
        f" {subject(criterion)}, {_MEANING[verdict]} of {margin}: estimate {shown}, {level}."
        f"{_caution(criterion, verdict, interval)}{win(criterion, verdict, interval.estimate)}"
    )


def invalid(criterion: Criterion, problems: Sequence[str]) -> str:
    """Return the sentence of a criterion that was not decided."""
    return (
        f"{Verdict.INVALID}: {criterion.metric} of {contrast_text(criterion.contrast().weights)}"
        f" was not compared with the margin {criterion.margin:+g}: {'; '.join(problems)}"
    )


def in_points(criterion: Criterion) -> bool:
    """Whether scores lie in [0, 1], so that 100 times them are points."""
    return all(bounds == (0.0, 1.0) for bounds in criterion.contrast().bounds.values())


def limits_text(criterion: Criterion, interval: Interval) -> str:
    """Write the limits in points where scores lie in [0, 1], else as they are."""
    if in_points(criterion):
        return f"[{100 * interval.lower:+.2f}, {100 * interval.upper:+.2f}] points"
    return f"[{interval.lower:+.6g}, {interval.upper:+.6g}]"


def subject(criterion: Criterion) -> str:
    """What the verdict speaks of."""
    if criterion.unit == Unit.SEEDS:
        seeds = len(criterion.seeds)
        return f"the method over {seeds} seeds" if seeds > 1 else "these runs of one seed"
    if len(criterion.seeds) > 1:
        return f"these checkpoints ({len(criterion.seeds)} seeds an arm, averaged item by item)"
    return "these checkpoints"


def points(value: float) -> str:
    """A score difference in points."""
    return f"{round(100 * value, 4):+g} points"


def contrast_text(weights: Mapping[str, float]) -> str:
    """Write the contrast as a sum: ``treatment - baseline``, ``treatment - 1.5 baseline``."""
    terms = sorted(weights.items(), key=lambda term: term[1] < 0)
    text = " ".join(
        f"{'-' if weight < 0 else '+'} {'' if abs(weight) == 1 else f'{abs(weight):g} '}{arm}"
        for arm, weight in terms
    )
    return text.removeprefix("+ ")


def win(criterion: Criterion, verdict: Verdict, estimate: float) -> str:
    """What the registration calls a win: a report, and no part of the verdict."""
    if criterion.win is None or verdict is not Verdict.VALIDATED:
        return ""
    bar = points(criterion.win) if in_points(criterion) else f"{criterion.win:+g}"
    if estimate > criterion.win:
        return f" By the registration this is a win: the estimate is above {bar}."
    return f" By the registration this is no win, which takes an estimate above {bar}."


def _caution(criterion: Criterion, verdict: Verdict, interval: Interval) -> str:
    """The misreading that each verdict invites."""
    if verdict is Verdict.INCONCLUSIVE:
        return " This is not evidence that there is no effect."
    if verdict is Verdict.VALIDATED and criterion.margin < 0.0 and interval.lower <= 0.0:
        return " This does not show that it lies above 0."
    if verdict is Verdict.REFUTED and criterion.margin > 0.0 and interval.upper >= 0.0:
        return " This does not show that it lies below 0."
    return ""
