"""Rules that compare an estimate itself with thresholds, in exact arithmetic.

    point_thresholds   VALIDATED if the contrast is at least the margin, REFUTED if the refuting
                       contrast lies below its own margin, and not below its least value where
                       one is registered, INCONCLUSIVE elsewhere
    point_estimate     the same with one contrast and one margin: what does not validate is refuted
    seed_range         VALIDATED if the gap exceeds a multiple of the larger seed range, REFUTED if
                       it does not exceed a smaller multiple, INCONCLUSIVE between

Such rules are what cards in prose mean by "at least 3 points" and "more than seed noise". They
control no error rate, and at a margin they are wrong half the time; what they get wrong by chance
is said beside them.
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from harness.decisions.criterion import Criterion, Unit
from harness.decisions.outcome import Verdict
from harness.decisions.sentences import contrast_text, in_points, limits_text, subject, win
from harness.errors import StatisticsError
from harness.statistics.intervals import Interval
from harness.statistics.ratios import as_fraction

Scores = Mapping[str, NDArray[np.float64]]

# of what is summed, far above the rounding of a mean; exact arithmetic is slow
DOUBLES_TELL = 1e-9

# false VALIDATED without any effect, by the multiple of the larger range; simulated, normal noise
CAVEATS = {
    (2, 2.0): "with 2 seeds and no effect this happens 3.5% of the time",
    (3, 2.0): "with 3 seeds and no effect this happens 0.25% of the time",
}


def verdict_of(criterion: Criterion, scores: Scores) -> Verdict:
    """What the thresholds make of the scores.

    Raises:
        StatisticsError: averages of steps that are all 0 hold nothing to compare.
    """
    if criterion.unit == Unit.SEEDS and not any(x_S.any() for x_S in scores.values()):
        raise StatisticsError(
            f"{criterion.metric} is 0 in every arm, so there is nothing to compare; look at the "
            "gates, or lengthen the arms"
        )
    if criterion.seed_range is not None:
        estimate = exact_mean(criterion.weights, scores)
        noise = largest_range(criterion, scores)
        validated, refuted = (as_fraction(multiple) * noise for multiple in criterion.seed_range)
        if estimate > validated:
            return Verdict.VALIDATED
        return Verdict.REFUTED if estimate <= refuted else Verdict.INCONCLUSIVE
    # a registration in which both thresholds hold is refused before the run
    if at_least(criterion.margin, criterion.weights, scores):
        return Verdict.VALIDATED
    if criterion.refuting is None:
        return Verdict.INCONCLUSIVE
    weights, margin = criterion.refuting
    if at_least(margin, weights, scores):
        return Verdict.INCONCLUSIVE
    if criterion.refuted_from is None or at_least(criterion.refuted_from, weights, scores):
        return Verdict.REFUTED
    return Verdict.INCONCLUSIVE


def sentence(criterion: Criterion, verdict: Verdict, scores: Scores, shown: Interval) -> str:
    """The verdict in words; `shown` has limits that a reader may want and no rule uses."""
    estimate = float(exact_mean(criterion.weights, scores))
    compared = _by_seed_range if criterion.seed_range is not None else _by_margins
    return (
        f"{verdict}: {criterion.metric} of {contrast_text(criterion.weights)}, for "
        f"{subject(criterion)}, {compared(criterion, estimate, scores, shown)}"
        f"{win(criterion, verdict, estimate)}"
    )


def at_least(threshold: float, weights: Mapping[str, float], scores: Scores) -> bool:
    """Whether the contrast of the means is at least the threshold, as `exact_mean` has it."""
    used = [(weight, scores[role]) for role, weight in weights.items() if weight]
    gap = sum(weight * float(x_N.mean()) for weight, x_N in used) - threshold
    scale = abs(threshold) + sum(abs(weight) * float(np.abs(x_N).max()) for weight, x_N in used)
    if abs(gap) > DOUBLES_TELL * scale:
        return gap > 0.0
    return exact_mean(weights, scores) >= as_fraction(threshold)


def exact_mean(weights: Mapping[str, float], scores: Scores) -> Fraction:
    """The contrast of the means, exact in the decimals that weights and scores print as."""
    total = Fraction(0)
    for role, weight in weights.items():
        if weight:  # what weighs nothing was not joined
            values = scores[role].tolist()
            total += as_fraction(weight) * sum(map(as_fraction, values), Fraction(0)) / len(values)
    return total


def means_text(scores: Scores) -> str:
    """The mean of every role."""
    return ", ".join(f"{role} {float(x_N.mean()):.6g}" for role, x_N in scores.items())


def largest_range(criterion: Criterion, scores: Scores) -> Fraction:
    """The largest difference between seeds of one role, over the roles that are weighed."""
    return max(
        as_fraction(float(scores[role].max())) - as_fraction(float(scores[role].min()))
        for role in criterion.contrast().weights
    )


def _by_margins(criterion: Criterion, estimate: float, scores: Scores, shown: Interval) -> str:
    refuting = "nothing refutes"
    if criterion.refuting is not None:
        weights, margin = criterion.refuting
        refuting = f"refuted if {contrast_text(weights)} lies below {_shown(criterion, margin)}"
        if criterion.refuted_from is not None:
            refuting += f" and not below {_shown(criterion, criterion.refuted_from)}"
        if weights != criterion.weights:
            refuting += f", it is {_shown(criterion, float(exact_mean(weights, scores)))}"
    limits = ""
    if criterion.unit != Unit.SEEDS:
        limits = (
            f" Hoeffding limits {limits_text(criterion, shown)} at range "
            f"{criterion.contrast().range:g} are shown and not used: the rule compares the "
            "estimate alone, so chance is not ruled out."
        )
    return (
        f"is {_shown(criterion, estimate)}; validated from {_shown(criterion, criterion.margin)} "
        f"up, {refuting}; n={shown.n}; means {means_text(scores)}.{limits}"
    )


def _by_seed_range(criterion: Criterion, estimate: float, scores: Scores, _: Interval) -> str:
    assert criterion.seed_range is not None
    validated, refuted = criterion.seed_range
    seeds = len(criterion.seeds)
    unknown = f"how often chance does this with {seeds} seeds is not known here"
    return (
        f"has a gap of {estimate:+.6g} against a largest seed range of "
        f"{float(largest_range(criterion, scores)):.6g}; validated above {validated:g} ranges, "
        f"refuted up to {refuted:g}; means {means_text(scores)}. "
        f"Small samples: {CAVEATS.get((seeds, validated), unknown)} (normal seed noise), and more "
        "seeds make it harder to pass, since the range grows with their number."
    )


def _shown(criterion: Criterion, value: float) -> str:
    return f"{100 * value:+.2f} points" if in_points(criterion) else f"{value:+.6g}"
