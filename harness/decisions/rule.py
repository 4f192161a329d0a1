"""The decision: the registered method alone sets the verdict."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.decisions import sentences, thresholds
from harness.decisions.criterion import Criterion, Unit
from harness.decisions.method import Method
from harness.decisions.methods import registered_method
from harness.decisions.outcome import Outcome, Verdict
from harness.decisions.pairing import PairedScores, Rows, paired_scores
from harness.decisions.sample import Sample
from harness.errors import StatisticsError
from harness.statistics.intervals import Interval
from harness.statistics.paired import PairedCounts, paired_counts

NEAR_TIE = 1e-12  # closer than this, doubles can't tell a limit from a margin


def decide(
    criterion: Criterion,
    scores_by_arm: Mapping[str, Rows],
    registered_item_ids: Sequence[str],
    *,
    clusters: Mapping[str, str | int] | None = None,
) -> Outcome:
    """Apply the registered method: VALIDATED if lower > margin, REFUTED if upper < margin.

    Both comparisons are strict and unrounded; a limit within 1e-12 of the margin is compared in
    exact arithmetic where the method allows it, and decides nothing where it does not.
    ``scores_by_arm`` maps an arm (or cell) to its score by item id; with the unit ``seeds`` the
    items are the seeds. ``clusters`` maps an item to its cluster, for ``clustered_t``.
    INVALID, with all problems, when the data do not fit the registration. Raises CardError when
    the criterion itself can't be applied.
    """
    method = registered_method(criterion)
    used = criterion.contrast()
    absent = [arm for arm in used.weights if arm not in scores_by_arm]
    rows = {arm: scores_by_arm[arm] for arm in used.weights if arm in scores_by_arm}
    joined = paired_scores(rows, registered_item_ids, used.bounds)
    problems = [f"arm {arm}: no scores at all; evaluate it" for arm in absent]
    problems += [*joined.problems, *_unit_problems(criterion, method, joined.item_ids)]
    problems += _cluster_problems(method, clusters, joined.item_ids)
    if problems:
        return _invalid(criterion, joined, problems)
    try:
        return _decided(criterion, method, joined, sample_of(criterion, joined, clusters))
    except StatisticsError as error:
        return _invalid(criterion, joined, [str(error)])
    except Exception as error:
        if criterion.own is None:
            raise
        said = f"method {method.name} raised {type(error).__name__} ({error})"
        return _invalid(criterion, joined, [f"{said}; correct {method.home}"])


def sample_of(
    criterion: Criterion, joined: PairedScores, clusters: Mapping[str, str | int] | None
) -> Sample:
    """Put joined scores into the registered order and form the contrast of every item."""
    order = registered_order(criterion.order_key, joined.item_ids)
    scores = {arm: x_N[order] for arm, x_N in joined.scores.items()}
    used = criterion.contrast()
    cluster_N: NDArray[np.int64] | None = None
    if clusters is not None:
        codes: dict[str | int, int] = {}
        labels = [codes.setdefault(clusters[item], len(codes)) for item in joined.item_ids]
        cluster_N = np.array(labels, dtype=np.int64)[order]
    return Sample(used, scores, used.values(scores), _table(criterion, scores), cluster_N)


def joined_sample(
    criterion: Criterion,
    scores_by_arm: Mapping[str, Rows],
    registered_item_ids: Sequence[str],
    clusters: Mapping[str, str | int] | None = None,
) -> Sample:
    """Join and order scores that ``decide`` accepts; StatisticsError with the problems if not."""
    used = criterion.contrast()
    rows = {arm: scores_by_arm[arm] for arm in used.weights}
    joined = paired_scores(rows, registered_item_ids, used.bounds)
    if joined.problems:
        raise StatisticsError("; ".join(joined.problems))
    return sample_of(criterion, joined, clusters)


def registered_order(order_key: str | None, item_ids: Sequence[str]) -> NDArray[np.int64]:
    """Positions of the items sorted by sha256(order_key + id); as registered without a key."""
    if not order_key:
        return np.arange(len(item_ids))
    digests = [hashlib.sha256(f"{order_key}{item}".encode()).digest() for item in item_ids]
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)


def _decided(criterion: Criterion, method: Method, joined: PairedScores, sample: Sample) -> Outcome:
    interval, verdict, notes = ruled(criterion, method, sample)
    if method.by_estimate:
        sentence = thresholds.sentence(criterion, verdict, sample.scores, interval)
        outcome = _outcome(criterion, method, joined, sample, interval, verdict, sentence)
        if criterion.unit == Unit.SEEDS:  # so few have no limits to show
            return replace(outcome, lower=None, upper=None, half_width=None)
        return outcome
    sentence = sentences.decided(criterion, verdict, interval)
    return replace(
        _outcome(criterion, method, joined, sample, interval, verdict, sentence),
        p_validated=method.p_above(sample, criterion, criterion.margin),
        p_refuted=method.p_above(sample.mirrored(), criterion, -criterion.margin),
        notes=tuple(notes),
    )


def _outcome(
    criterion: Criterion,
    method: Method,
    joined: PairedScores,
    sample: Sample,
    interval: Interval,
    verdict: Verdict,
    sentence: str,
) -> Outcome:
    """What was decided, with everything that it takes to do it again."""
    return Outcome(
        id=criterion.id,
        metric=criterion.metric,
        verdict=verdict,
        estimate=interval.estimate,
        lower=interval.lower,
        upper=interval.upper,
        margin=criterion.margin,
        half_width=interval.half_width,
        n=interval.n,
        n_registered=len(joined.item_ids),
        range=sample.contrast.range,
        alpha=criterion.alpha,
        sides=criterion.sides,
        method=method.name,
        unit=criterion.unit,
        p_validated=None,
        p_refuted=None,
        counts=sample.counts,
        problems=(),
        notes=(),
        sentence=sentence,
    )


def ruled(
    criterion: Criterion, method: Method, sample: Sample
) -> tuple[Interval, Verdict, list[str]]:
    """The limits, what the method says of them, and how near ties were resolved."""
    interval = method.limits(sample, criterion)
    # an own method's; betting keeps what it has shown, so its estimate may leave its interval
    if criterion.own is not None and not interval.lower <= interval.estimate <= interval.upper:
        raise StatisticsError(
            f"method {method.name} gives the limits [{interval.lower:g}, {interval.upper:g}] of "
            f"the estimate {interval.estimate:g}; limits are numbers on both sides of it"
        )
    if method.by_estimate:
        return interval, thresholds.verdict_of(criterion, sample.scores), []
    notes: list[str] = []
    above = _clears(method, sample, criterion, interval.lower, criterion.margin, notes)
    mirror = sample.mirrored()
    below = _clears(method, mirror, criterion, -interval.upper, -criterion.margin, notes)
    verdict = Verdict.INCONCLUSIVE
    if above != below:
        verdict = Verdict.VALIDATED if above else Verdict.REFUTED
    return interval, verdict, notes


def _clears(
    method: Method,
    sample: Sample,
    criterion: Criterion,
    lower: float,
    margin: float,
    notes: list[str],
) -> bool:
    scale = max(1.0, abs(margin), sample.contrast.range)
    if abs(lower - margin) >= NEAR_TIE * scale:
        return lower > margin
    answer = method.exactly_above(sample, criterion, margin)
    how = "has no exact form, so nothing is decided" if answer is None else "compared exactly"
    notes.append(f"a limit lies within 1e-12 of the margin: {how}")
    return bool(answer)


def _invalid(criterion: Criterion, joined: PairedScores, problems: Sequence[str]) -> Outcome:
    return Outcome(
        id=criterion.id,
        metric=criterion.metric,
        verdict=Verdict.INVALID,
        estimate=None,
        lower=None,
        upper=None,
        margin=criterion.margin,
        half_width=None,
        n=0,
        n_registered=len(joined.item_ids),
        range=criterion.contrast().range,
        alpha=criterion.alpha,
        sides=criterion.sides,
        method=criterion.method,
        unit=criterion.unit,
        p_validated=None,
        p_refuted=None,
        counts=None,
        problems=tuple(problems),
        notes=(),
        sentence=sentences.invalid(criterion, problems),
    )


def _unit_problems(criterion: Criterion, method: Method, ids: Sequence[str]) -> list[str]:
    if criterion.unit == Unit.SEEDS and sorted(ids) != sorted(str(s) for s in criterion.seeds):
        return [
            f"{len(ids)} scores were given as seeds, registered are"
            f" {len(criterion.seeds)}: {', '.join(str(s) for s in criterion.seeds)}"
        ]
    if len(ids) < method.min_n:
        return [f"{method.name} needs at least {method.min_n} {criterion.unit}, got {len(ids)}"]
    return []


def _cluster_problems(
    method: Method, clusters: Mapping[str, str | int] | None, ids: Sequence[str]
) -> list[str]:
    if clusters is None:
        if method.name == "clustered_t":
            return ["clustered_t needs the cluster of every item; none were given"]
        return []
    without = [item for item in ids if item not in clusters]
    return [f"{len(without)} items have no cluster, e.g. {without[0]}"] if without else []


def _table(criterion: Criterion, scores: Mapping[str, NDArray[np.float64]]) -> PairedCounts | None:
    """The 2x2 table if it exists; StatisticsError if the method needs it and it does not."""
    pair = criterion.pair
    if pair is None:
        return None
    try:
        return paired_counts(scores[pair[0]], scores[pair[1]])
    except StatisticsError:
        if registered_method(criterion).binary:
            raise
        return None
