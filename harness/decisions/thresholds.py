"""Rules that compare an estimate itself with thresholds, in exact arithmetic.

    point_thresholds   VALIDATED if the contrast is at least the margin, REFUTED if the refuting
                       contrast lies below its own margin, and not below its least value where
                       one is registered, INCONCLUSIVE elsewhere
    seed_range         VALIDATED if the gap exceeds a multiple of the larger seed range, REFUTED if
                       it does not exceed a smaller multiple, INCONCLUSIVE between

Such rules are what cards in prose mean by "at least 3 points" and "more than seed noise". They
control no error rate; what they get wrong by chance is said beside them.
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from harness.decisions.criterion import Criterion, Unit
from harness.decisions.outcome import Verdict
from harness.decisions.sentences import contrast_text, in_points, limits_text, subject
from harness.errors import StatisticsError
from harness.statistics.intervals import Interval
from harness.statistics.ratios import as_fraction

Scores = Mapping[str, NDArray[np.float64]]

# false VALIDATED without any effect, by the multiple of the larger range; simulated, normal noise
CAVEATS = {
    (2, 2.0): "with 2 seeds and no effect this happens 3.5% of the time",
    (3, 2.0): "with 3 seeds and no effect this happens 0.25% of the time",
}


def compare(criterion: Criterion, scores: Scores, shown: Interval) -> tuple[Verdict, str]:
    """The verdict and its sentence; `shown` has limits that a reader may want and no rule uses.

    Raises:
        StatisticsError: averages of steps that are all 0 hold nothing to compare.
    """
    if criterion.unit == Unit.SEEDS and not any(x_S.any() for x_S in scores.values()):
        raise StatisticsError(
            f"{criterion.metric} is 0 in every arm, so there is nothing to compare; look at the "
            "gates, or lengthen the arms"
        )
    if criterion.seed_range is not None:
        return _seed_range(criterion, scores)
    estimate = exact_mean(criterion.weights, scores)
    verdict = Verdict.INCONCLUSIVE
    refuting = "nothing refutes"
    if criterion.refuted is not None:
        weights, margin = criterion.refuted
        other, least = exact_mean(weights, scores), criterion.refuted_from
        if other < as_fraction(margin) and (least is None or other >= as_fraction(least)):
            verdict = Verdict.REFUTED
        refuting = f"refuted if {contrast_text(weights)} lies below {_shown(criterion, margin)}"
        if least is not None:
            refuting += f" and not below {_shown(criterion, least)}"
        if weights != criterion.weights:
            refuting += f", it is {_shown(criterion, float(other))}"
    if estimate >= as_fraction(criterion.margin):
        # a registration in which both hold is refused before the run
        verdict = Verdict.VALIDATED
    limits = ""
    if criterion.unit != Unit.SEEDS:
        limits = (
            f" Hoeffding limits {limits_text(criterion, shown)} at range "
            f"{criterion.contrast().range:g} are shown and not used: the rule compares the "
            "estimate alone, so chance is not ruled out."
        )
    return verdict, (
        f"{verdict}: {criterion.metric} of {contrast_text(criterion.weights)}, for "
        f"{subject(criterion)}, is {_shown(criterion, float(estimate))}; validated from "
        f"{_shown(criterion, criterion.margin)} up, {refuting}; n={shown.n}; means "
        f"{means_text(scores)}.{limits}"
    )


def exact_mean(weights: Mapping[str, float], scores: Scores) -> Fraction:
    """The contrast of the means, exact in the decimals that weights and scores print as."""
    total = Fraction(0)
    for role, weight in weights.items():
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


def _seed_range(criterion: Criterion, scores: Scores) -> tuple[Verdict, str]:
    assert criterion.seed_range is not None
    validated, refuted = criterion.seed_range
    gap, noise = exact_mean(criterion.weights, scores), largest_range(criterion, scores)
    verdict = Verdict.INCONCLUSIVE
    if gap > as_fraction(validated) * noise:
        verdict = Verdict.VALIDATED
    elif gap <= as_fraction(refuted) * noise:
        verdict = Verdict.REFUTED
    seeds = len(criterion.seeds)
    caveat = CAVEATS.get((seeds, validated), f"how often chance does this with {seeds} seeds is")
    caveat = caveat if (seeds, validated) in CAVEATS else f"{caveat} not known here"
    return verdict, (
        f"{verdict}: {criterion.metric} of {contrast_text(criterion.weights)}, for "
        f"{subject(criterion)}, has a gap of {float(gap):+.6g} against a largest seed range of "
        f"{float(noise):.6g}; validated above {validated:g} ranges, refuted up to {refuted:g}; "
        f"means {means_text(scores)}. "
        f"Small samples: {caveat} (normal seed noise), and more seeds make it harder to pass, "
        "since the range grows with their number."
    )


def _shown(criterion: Criterion, value: float) -> str:
    return f"{100 * value:+.2f} points" if in_points(criterion) else f"{value:+.6g}"
