"""Seed-level ratio rules, in exact arithmetic: "at least 1.5 times, by more than twice the range".

Scores are read as the decimals they print as: 0.3 / 0.2 is 3/2 here, though not in doubles. A
linear contrast (weights +1, -1.5) says the same without a denominator; prefer it where one can.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from harness.errors import StatisticsError
from harness.statistics.checked import finite, positive_int


@dataclass(frozen=True, slots=True)
class SeedRatio:
    """One exact mean per seed of the last updates, for two arms."""

    treatment_seed_means: tuple[Fraction, ...]
    baseline_seed_means: tuple[Fraction, ...]

    @property
    def gap(self) -> Fraction:
        """Treatment mean minus baseline mean over seeds."""
        return _mean(self.treatment_seed_means) - _mean(self.baseline_seed_means)

    @property
    def range_treatment(self) -> Fraction:
        """Largest minus smallest seed mean of the treatment."""
        return max(self.treatment_seed_means) - min(self.treatment_seed_means)

    @property
    def range_baseline(self) -> Fraction:
        """Largest minus smallest seed mean of the baseline."""
        return max(self.baseline_seed_means) - min(self.baseline_seed_means)

    @property
    def ratio_of_means(self) -> Fraction:
        """Mean over seeds of the treatment divided by that of the baseline."""
        return _divide(_mean(self.treatment_seed_means), _mean(self.baseline_seed_means))

    @property
    def mean_of_seed_ratios(self) -> Fraction:
        """Mean over seeds of each seed's own quotient: another number than ``ratio_of_means``."""
        if len(self.treatment_seed_means) != len(self.baseline_seed_means):
            raise StatisticsError("seed ratios pair the arms by seed: give both the same seeds")
        pairs = zip(self.treatment_seed_means, self.baseline_seed_means, strict=True)
        return _mean([_divide(t, b) for t, b in pairs])

    def ratio_at_least(self, threshold: float) -> bool:
        """Whether ratio_of_means >= threshold, the threshold read as a decimal."""
        return self.ratio_of_means >= as_fraction(threshold)

    def gap_exceeds_range(self, multiple: float, of: Literal["largest", "baseline"]) -> bool:
        """Whether gap > multiple x the seed range (the larger of both arms', or the baseline's).

        Raises StatisticsError with a single seed: its range is 0 and the rule would be empty.
        """
        if min(len(self.treatment_seed_means), len(self.baseline_seed_means)) < 2:
            raise StatisticsError("the range of one seed is 0: the rule needs at least 2 seeds")
        largest = max(self.range_treatment, self.range_baseline)
        return self.gap > as_fraction(multiple) * (
            largest if of == "largest" else self.range_baseline
        )


def seed_ratio(
    treatment_S_T: Sequence[Sequence[float]], baseline_S_T: Sequence[Sequence[float]], last: int
) -> SeedRatio:
    """Average the last ``last`` updates of every seed to ONE number, since they are correlated.

    Raises StatisticsError when a seed has fewer updates, or a value is not finite.
    """
    return SeedRatio(
        tuple(_last_mean(updates, last, "treatment", s) for s, updates in enumerate(treatment_S_T)),
        tuple(_last_mean(updates, last, "baseline", s) for s, updates in enumerate(baseline_S_T)),
    )


def as_fraction(value: float) -> Fraction:
    """Return the decimal that ``value`` prints as, exactly: 0.1 becomes 1/10."""
    return Fraction(repr(finite(value, "value")))


def _last_mean(updates_T: Sequence[float], last: int, arm: str, seed: int) -> Fraction:
    if len(updates_T) < positive_int(last, "last"):
        raise StatisticsError(
            f"{arm} seed {seed} has {len(updates_T)} updates, the rule averages the last {last}"
        )
    return _mean([as_fraction(value) for value in updates_T[-last:]])


def _mean(values: Sequence[Fraction]) -> Fraction:
    if not values:
        raise StatisticsError("no seeds: at least one is needed")
    return sum(values, Fraction(0)) / len(values)


def _divide(a: Fraction, b: Fraction) -> Fraction:
    if b == 0:
        raise StatisticsError("the baseline is 0, so there is no ratio; register a linear contrast")
    return a / b
