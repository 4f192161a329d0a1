"""What a threshold on the estimate itself gets right and wrong by chance, before any data."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.statistics.checked import finite, positive, positive_int
from harness.statistics.intervals import hoeffding_half_width
from harness.statistics.special import normal_cdf


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    """Chances at one assumed discordance of each pair of arms."""

    discordance: float
    standard_error: float
    validated_at_none: float  # no effect, yet VALIDATED
    refuted_at_none: float
    validated_at_expected: float
    refuted_at_expected: float


@dataclass(frozen=True, slots=True)
class ThresholdPower:
    """A threshold rule before the run; ``lines`` prints it."""

    n: int
    range: float
    half_width: float
    margin: float
    refuted_margin: float | None
    expected_effect: float
    rows: tuple[ThresholdRow, ...]
    refuted_from: float | None = None

    def problems(self) -> list[str]:
        """Return one line if the author's own effect would be validated less often than not."""
        if self.expected_effect >= self.margin:
            return []
        return [
            f"expected effect {_points(self.expected_effect)} is below the margin "
            f"{_points(self.margin)}: the rule would more often than not miss it"
        ]

    def lines(self) -> list[str]:
        """Return the block as text; points are 100 times the score."""
        below = "" if self.refuted_margin is None else f", refuted below {self.refuted_margin:+.2%}"
        below += "" if self.refuted_from is None else f" and not below {self.refuted_from:+.2%}"
        each = "/".join(f"{100 * row.discordance:g}" for row in self.rows)

        def chances(name: str) -> str:
            return "/".join(f"{100 * getattr(row, name):.0f}" for row in self.rows)

        errors = "/".join(f"{100 * row.standard_error:.1f}" for row in self.rows)
        expected = _points(self.expected_effect)
        return [
            f"design: n={self.n}, range {self.range:g}, validated from {self.margin:+.2%}{below}; "
            f"Hoeffding half-width {100 * self.half_width:.2f} points, so no interval of this "
            "range could decide at this n",
            f"the rule compares the estimate alone; its standard error is {errors} points at a "
            f"discordance of {each}% in each pair (normal approximation)",
            f"no effect at all: VALIDATED {chances('validated_at_none')}%, REFUTED "
            f"{chances('refuted_at_none')}% of the time",
            f"at the expected effect {expected}: VALIDATED {chances('validated_at_expected')}%, "
            f"REFUTED {chances('refuted_at_expected')}% of the time",
        ]


def threshold_power(
    n: int,
    range: float,
    alpha: float,
    sides: int,
    margin: float,
    refuted_margin: float | None,
    discordances: Sequence[float],
    expected_effect: float,
    refuted_from: float | None = None,
) -> ThresholdPower:
    """Compute the block: z of range 2m is m independent paired differences.

    Each pair disagrees on the given share of items, so that var(z) is m times it (less the squared
    effect, which is left out); of graded scores it is the mean squared difference of a pair.
    Raises StatisticsError for numbers out of range.
    """
    pairs, effect = positive(range, "range") / 2.0, finite(expected_effect, "effect")

    def row(d: float) -> ThresholdRow:
        error = (positive(d, "discordance") * pairs / positive_int(n, "n")) ** 0.5

        def above(truth: float) -> float:
            return 1.0 - normal_cdf((margin - truth) / error)

        def below(truth: float) -> float:
            if refuted_margin is None:
                return 0.0
            lowest = 0.0 if refuted_from is None else normal_cdf((refuted_from - truth) / error)
            return normal_cdf((refuted_margin - truth) / error) - lowest

        return ThresholdRow(d, error, above(0.0), below(0.0), above(effect), below(effect))

    return ThresholdPower(
        n,
        range,
        hoeffding_half_width(n, range, alpha, sides),
        margin,
        refuted_margin,
        effect,
        tuple(row(d) for d in discordances),
        refuted_from,
    )


def _points(value: float) -> str:
    return f"{100 * value:+.2f} points"
