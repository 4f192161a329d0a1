"""A rule on 2x2 tables, before any data: its verdicts, its power, its error rate with two looks.

Two arms with 0/1 scores are known to every item method by their table of wins, losses and ties, so
the registered method itself is asked about tables instead of a formula about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.decisions.criterion import Criterion, Unit
from harness.decisions.methods import registered_method
from harness.decisions.outcome import Verdict
from harness.decisions.rule import ruled
from harness.decisions.sample import Sample
from harness.errors import CardError
from harness.statistics.paired import PairedCounts
from harness.statistics.special import binomial_at_least, binomial_pmf, normal_quantile

if TYPE_CHECKING:
    from harness.cards.card import SecondLook

POWER = 0.8
REACH = 6.0  # standard deviations of the discordant count; what lies beyond is below 1e-8
MAX_ITEMS = 1 << 20


@dataclass(frozen=True)
class ErrorRates:
    """Shares of simulated experiments by verdict, and of those that took a second look."""

    validated: float
    refuted: float
    inconclusive: float
    second_look: float


def takes_tables(criterion: Criterion) -> bool:
    """Whether the criterion is decided by the table alone: order, clusters and seeds are not."""
    method = registered_method(criterion)
    if criterion.own is not None:  # nobody has said that a win more never takes VALIDATED away
        return False
    by_items = criterion.unit == Unit.FIXED_CHECKPOINT_ITEMS and len(criterion.seeds) <= 1
    ordered = method.name in ("paired_betting_cs", "clustered_t")
    return criterion.pair is not None and by_items and not ordered


def table_verdict(criterion: Criterion, n: int, wins: int, losses: int) -> Verdict:
    """What the registered method says of n items of which these were won and lost."""
    method = registered_method(criterion)
    return ruled(criterion, method, _sample(criterion, n, wins, losses))[1]


def p_validated(criterion: Criterion, n: int, discordance: float, truth: float) -> float:
    """P(VALIDATED) over the tables that n items give at this discordance and true difference.

    Exact up to the 6 standard deviations of the discordant count that are looked at. The method
    must be monotone: at equal discordance a win more never takes VALIDATED away.

    Raises:
        CardError: a true difference that the discordance can't give, or no method on tables.
    """
    if not takes_tables(criterion):
        raise CardError(f"criterion {criterion.id}: {criterion.method} is not decided by a table")
    if not 0.0 < discordance < 1.0 or abs(truth) > discordance:
        raise CardError(f"a difference of {truth} can't come from discordance {discordance}")
    spread = REACH * math.sqrt(n * discordance * (1.0 - discordance)) + 2.0
    low = max(0, math.floor(n * discordance - spread))
    high = min(n, math.ceil(n * discordance + spread))
    k = np.arange(low, high + 1)
    needed = wins_needed(criterion, n, low, high)
    tails = binomial_at_least(needed, k, (discordance + truth) / (2.0 * discordance))
    return float(binomial_pmf(k, n, discordance) @ tails)


def wins_needed(
    criterion: Criterion, n: int, low: int, high: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For low..high discordant items, the fewest wins that validate; one more than all if none."""
    needed: list[int] = []
    wins = 0
    for k in range(low, high + 1):
        if not needed:
            wins = _fewest(criterion, n, k)
        while wins > 0 and _validates(criterion, n, wins - 1, k):
            wins -= 1
        while wins <= k and not _validates(criterion, n, wins, k):
            wins += 1
        needed.append(wins)
    return np.array(needed, dtype=np.int64)


def n_for_power(criterion: Criterion, discordance: float, truth: float) -> int | None:
    """Items for 80% power: truth - margin >= half-width at the expected table + .84 sd/sqrt(n).

    None if no n up to a million does, as when the truth is not above the margin.
    """
    sd = math.sqrt(max(discordance - truth**2, 0.0))

    def enough(n: int) -> bool:
        wins = round(n * (discordance + truth) / 2.0)
        losses = min(n - wins, round(n * (discordance - truth) / 2.0))
        method = registered_method(criterion)
        interval = method.limits(_sample(criterion, n, wins, losses), criterion)
        below = 0.0 if method.by_estimate else interval.estimate - interval.lower
        return truth - criterion.margin >= below + normal_quantile(POWER) * sd / math.sqrt(n)

    high = 64
    while not enough(high):
        high *= 2
        if high > MAX_ITEMS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def two_look_rates(
    criterion: Criterion,
    look: SecondLook | None,
    n: int,
    discordance: float,
    truth: float,
    seed_sd: float,
    experiments: int,
    seed: int,
) -> ErrorRates:
    """Simulate whole experiments through the method: a look, a second where called for, agreement.

    The true difference of a look is ``truth`` plus the seed noise of two arms, each of standard
    deviation ``seed_sd``, kept within the discordance. The looks' items are drawn independently;
    looks on the same items agree more often, up to a second look that only repeats the first.
    """
    generator = np.random.default_rng(seed)
    noise_E_2 = generator.normal(0.0, math.sqrt(2.0) * seed_sd, (experiments, 2))
    truth_E_2 = np.clip(truth + noise_E_2, -discordance, discordance)
    discordant_E_2 = generator.binomial(n, discordance, (experiments, 2))
    wins_E_2 = generator.binomial(discordant_E_2, (discordance + truth_E_2) / (2 * discordance))
    known: dict[tuple[int, int], Verdict] = {}

    def said(wins: int, losses: int) -> Verdict:
        if (wins, losses) not in known:
            known[wins, losses] = table_verdict(criterion, n, wins, losses)
        return known[wins, losses]

    counts = dict.fromkeys(Verdict, 0)
    seconds = 0
    for (w1, w2), (k1, k2) in zip(wins_E_2.tolist(), discordant_E_2.tolist(), strict=True):
        verdict = said(w1, k1 - w1)
        gap = (2 * w1 - k1) / n
        if look and verdict is not Verdict.INCONCLUSIVE and look.low <= gap <= look.high:
            seconds += 1
            if said(w2, k2 - w2) is not verdict:
                verdict = Verdict.INCONCLUSIVE
        counts[verdict] += 1
    return ErrorRates(
        counts[Verdict.VALIDATED] / experiments,
        counts[Verdict.REFUTED] / experiments,
        counts[Verdict.INCONCLUSIVE] / experiments,
        seconds / experiments,
    )


def _validates(criterion: Criterion, n: int, wins: int, discordant: int) -> bool:
    return table_verdict(criterion, n, wins, discordant - wins) is Verdict.VALIDATED


def _fewest(criterion: Criterion, n: int, discordant: int) -> int:
    """The fewest wins that validate, by halving; one more than all if none does."""
    low, high = 0, discordant + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _validates(criterion, n, middle, discordant) else (middle + 1, high)
        )
    return low


def _sample(criterion: Criterion, n: int, wins: int, losses: int) -> Sample:
    pair = criterion.pair
    if pair is None:
        raise CardError(f"criterion {criterion.id}: no table without two arms of 0/1 scores")
    treatment_N, baseline_N = np.zeros(n), np.zeros(n)
    treatment_N[:wins] = 1.0
    baseline_N[wins : wins + losses] = 1.0
    scores = {pair[0]: treatment_N, pair[1]: baseline_N}
    counts = PairedCounts(0, wins, losses, n - wins - losses)
    return Sample(criterion.contrast(), scores, treatment_N - baseline_N, counts, None)
