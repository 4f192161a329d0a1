"""What other methods would have said: for readers, after the verdict, and never part of it.

Nothing in the decision path may import this file.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from harness.decisions import sentences
from harness.decisions.criterion import Criterion, Unit
from harness.decisions.outcome import Outcome, Verdict
from harness.decisions.pairing import Rows
from harness.decisions.rule import decide, joined_sample
from harness.decisions.sample import Sample
from harness.errors import StatisticsError
from harness.statistics import clustered, exact, intervals, paired
from harness.statistics.intervals import Interval

LABEL = "not used for the verdict"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One other method's interval, and the verdict that it would have given."""

    name: str
    interval: Interval
    would_have_been: Verdict


def lines(
    criterion: Criterion,
    scores_by_arm: Mapping[str, Rows],
    registered_item_ids: Sequence[str],
    *,
    clusters: Mapping[str, str | int] | None = None,
) -> list[str]:
    """Return the diagnostics block, each line marked as not used for the verdict.

    Empty when the criterion is INVALID: data that do not fit the registration say nothing.
    """
    outcome = decide(criterion, scores_by_arm, registered_item_ids, clusters=clusters)
    if outcome.invalid:
        return []
    others = diagnostics(criterion, scores_by_arm, registered_item_ids, clusters=clusters)
    text = _counts_lines(outcome)
    for other in others:
        limits = sentences.limits_text(criterion, other.interval)
        text.append(f"{other.name} {limits}: would have been {other.would_have_been}")
    text += disagreements(criterion, outcome, others)
    return [f"{criterion.id} ({LABEL}): {line}" for line in text]


def diagnostics(
    criterion: Criterion,
    scores_by_arm: Mapping[str, Rows],
    registered_item_ids: Sequence[str],
    *,
    clusters: Mapping[str, str | int] | None = None,
) -> list[Diagnostic]:
    """Compute what the methods that fit the data give at the criterion's alpha and sides.

    0/1 pairs: the Clopper-Pearson pair (exact) and Tango (asymptotic). Other scores of items:
    empirical Bernstein. With clusters, and of graded scores, the clustered t; without clusters an
    item is its own, all of whose draws are in its score. The registered method is left out.
    """
    sample = joined_sample(criterion, scores_by_arm, registered_item_ids, clusters)
    alpha, sides = criterion.alpha, criterion.sides
    found: dict[str, Interval] = {}
    if sample.counts is not None:
        found["paired_cp_bonferroni"] = paired.clopper_pearson_pair(sample.counts, alpha, sides)
        found["paired_tango"] = paired.tango(sample.counts, alpha, sides)
    elif criterion.unit == Unit.FIXED_CHECKPOINT_ITEMS and sample.z_N.size > 1:
        found["paired_empirical_bernstein"] = intervals.empirical_bernstein(
            sample.z_N, sample.contrast.range, alpha, sides
        )
    cluster_N = sample.cluster_N
    if cluster_N is None and criterion.unit == Unit.FIXED_CHECKPOINT_ITEMS and _graded(sample):
        cluster_N = np.arange(sample.z_N.size)
    if cluster_N is not None:
        # one cluster, or no spread: this method has nothing to say
        with suppress(StatisticsError):
            found["clustered_t"] = clustered.clustered_t(sample.z_N, cluster_N, alpha, sides)
    found.pop(criterion.method, None)
    return [Diagnostic(name, i, _verdict(i, criterion.margin)) for name, i in found.items()]


def disagreements(
    criterion: Criterion, outcome: Outcome, others: Sequence[Diagnostic]
) -> list[str]:
    """Return a sentence for every diagnostic that would have said something else."""
    text = []
    for other in others:
        if other.would_have_been is outcome.verdict:
            continue
        limits = sentences.limits_text(criterion, other.interval)
        what = f"{outcome.verdict} (registered). {other.name} {limits}"
        if outcome.inconclusive:
            side = "above" if other.would_have_been is Verdict.VALIDATED else "below"
            absent = "the effect absent" if side == "above" else "the loss absent"
            what += f" lies {side} the margin: the design was underpowered, not {absent}."
        else:
            what += f" would have been {other.would_have_been}: the registered rule stands."
        text.append(f"{what} A tighter rule needs a NEW registration and fresh items/checkpoints.")
    return text


def _counts_lines(outcome: Outcome) -> list[str]:
    counts = outcome.counts
    if counts is None:
        return []
    b, c = counts.treatment_only, counts.baseline_only
    p = exact.mcnemar_exact(b, c).p_two_sided
    return [
        f"both right {counts.both}, treatment only b={b}, baseline only c={c}, neither"
        f" {counts.neither}; net {counts.net:+d}, discordance d={100 * counts.discordance:.1f}%",
        f"McNemar exact p={p:.5f}, two-sided, of margin 0 only: it does not test the margin"
        f" {outcome.margin:+g}",
    ]


def _graded(sample: Sample) -> bool:
    """Whether some score is neither 0 nor 1."""
    return any(not np.isin(x_N, (0.0, 1.0)).all() for x_N in sample.scores.values())


def _verdict(interval: Interval, margin: float) -> Verdict:
    if interval.lower > margin:
        return Verdict.VALIDATED
    return Verdict.REFUTED if interval.upper < margin else Verdict.INCONCLUSIVE
