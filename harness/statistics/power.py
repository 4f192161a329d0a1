"""The power block: what a Hoeffding rule can and cannot show, as figures and as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.statistics.checked import finite, positive_int
from harness.statistics.hoeffding_rule import (
    gap_for_power,
    n_for_power_hoeffding,
    n_for_power_normal,
    power_hoeffding_rule,
    required_n_hoeffding,
    smallest_passing_gap,
)


@dataclass(frozen=True, slots=True)
class PowerRow:
    """The rule at one assumed discordance (share of items on which the arms disagree)."""

    discordance: float
    p_at_tie: float  # P(VALIDATED) when the arms are truly equal
    gap_for_80: float | None
    n_for_80_at_tie: int | None
    n_for_80_at_tie_tango: int | None
    p_at_expected: float | None
    n_for_80_at_expected: int | None


@dataclass(frozen=True, slots=True)
class PowerBlock:
    """Everything that is known about a Hoeffding rule before the run; ``lines`` prints it."""

    n: int
    range: float
    margin: float
    alpha: float
    sides: int
    half_width: float
    smallest_passing_gap: float
    smallest_passing_net: int | None
    refuting_gap: float
    refuting_net: int | None
    n_for_tie: int | None
    expected_effect: float | None
    rows: tuple[PowerRow, ...]

    def problems(self) -> list[str]:
        """Return one line if the rule fails more often than not at the author's own effect."""
        if self.expected_effect is None or self.expected_effect >= self.smallest_passing_gap:
            return []
        needed = n_for_power_hoeffding(
            0.0, self.expected_effect - self.margin, self.range, self.alpha, self.sides
        )
        advice = f"at least {needed} items, or another margin" if needed else "another margin"
        return [
            f"expected effect {_points(self.expected_effect)} is below the smallest gap that"
            f" passes, {_points(self.smallest_passing_gap)} at n={self.n}: use {advice},"
            " or the registration must acknowledge it"
        ]

    def lines(self) -> list[str]:
        """Return the block as text, one statement per line; points are 100 times the score."""
        sided = {1: "one-sided", 2: "two-sided"}[self.sides]
        up = "" if self.smallest_passing_net is None else f" (net {self.smallest_passing_net:+d})"
        down = "" if self.refuting_net is None else f" (net {self.refuting_net:+d})"
        text = [
            f"design: n={self.n}, range {self.range:g}, margin {_points(self.margin)}, alpha"
            f" {self.alpha:g} {sided} -> half-width {100 * self.half_width:.3f} points, fixed",
            f"VALIDATED only from an observed gap of {_points(self.smallest_passing_gap)}{up} up;"
            f" REFUTED only from {_points(self.refuting_gap)}{down} down; INCONCLUSIVE between",
            f"n for an observed tie to pass: {self.n_for_tie}"
            if self.n_for_tie
            else "an observed tie can't pass at any n: the margin is not below zero",
        ]
        if not self.rows:
            return [*text, f"P(VALIDATED) is exact for ranges 2, 4, ... only, not {self.range:g}"]
        discordances = _slashed([f"{100 * r.discordance:g}" for r in self.rows])
        tie = _slashed([f"{100 * r.p_at_tie:.1f}" for r in self.rows])
        gaps = _slashed([_gap(r.gap_for_80) for r in self.rows])
        text += [
            f"arms truly equal: P(VALIDATED) = {tie}% at discordance {discordances}%",
            f"80% power needs a true gap of {gaps} points",
        ]
        if self.margin < 0.0:
            own = _slashed([str(r.n_for_80_at_tie) for r in self.rows])
            text.append(f"n for 80% power at equal arms: {own}")
        if self.margin < 0.0 and self.range == 2.0:
            other = _slashed([str(r.n_for_80_at_tie_tango) for r in self.rows])
            text[-1] += f"; with paired_tango registered instead: {other}"
        if self.expected_effect is not None:
            expected = _slashed([f"{100 * (r.p_at_expected or 0.0):.1f}" for r in self.rows])
            needed = _slashed([str(r.n_for_80_at_expected or "no n") for r in self.rows])
            text.append(
                f"at the expected effect {_points(self.expected_effect)}: P(VALIDATED) ="
                f" {expected}%; n for 80% power {needed}"
            )
        return text


def power_block(
    n: int,
    range: float,
    margin: float,
    alpha: float,
    sides: int,
    discordances: Sequence[float] = (0.1, 0.2, 0.3),
    expected_effect: float | None = None,
) -> PowerBlock:
    """Compute the power block of a Hoeffding rule.

    Net counts are given when z takes whole numbers (a whole range); the rows of probabilities when
    the range is even. An expected effect larger than a discordance allows has no probability there.
    Raises StatisticsError for numbers out of range.
    """
    gap = smallest_passing_gap(positive_int(n, "n"), range, margin, alpha, sides)
    whole = range == int(range)
    paired = whole and range % 2 == 0
    return PowerBlock(
        n=n,
        range=float(range),
        margin=float(margin),
        alpha=alpha,
        sides=sides,
        half_width=gap.half_width,
        smallest_passing_gap=gap.min_net_sum_pass / n if whole else gap.pass_needs_mean_above,
        smallest_passing_net=gap.min_net_sum_pass if whole else None,
        refuting_gap=gap.max_net_sum_refuted / n if whole else gap.refuted_needs_mean_below,
        refuting_net=gap.max_net_sum_refuted if whole else None,
        n_for_tie=required_n_hoeffding(range, alpha, -margin, sides) if margin < 0 else None,
        expected_effect=None if expected_effect is None else finite(expected_effect, "effect"),
        rows=tuple(
            _row(n, range, margin, alpha, sides, d, expected_effect)
            for d in (discordances if paired else ())
        ),
    )


def _row(
    n: int, range: float, margin: float, alpha: float, sides: int, d: float, effect: float | None
) -> PowerRow:
    pairs = range / 2.0
    possible = effect is not None and abs(effect) <= d * pairs
    return PowerRow(
        discordance=d,
        p_at_tie=power_hoeffding_rule(n, d, 0.0, margin, alpha, sides, range),
        gap_for_80=gap_for_power(n, d, margin, alpha, sides, range),
        n_for_80_at_tie=n_for_power_hoeffding(d * pairs, -margin, range, alpha, sides),
        n_for_80_at_tie_tango=n_for_power_normal(d * pairs, -margin, alpha, sides),
        p_at_expected=power_hoeffding_rule(n, d, effect, margin, alpha, sides, range)
        if effect is not None and possible
        else None,
        n_for_80_at_expected=n_for_power_hoeffding(
            d * pairs - effect**2 / pairs, effect - margin, range, alpha, sides
        )
        if effect is not None and possible
        else None,
    )


def _points(value: float) -> str:
    return f"{100 * value:+.2f} points"


def _gap(value: float | None) -> str:
    return "unreachable" if value is None else f"{100 * value:+.1f}"


def _slashed(texts: Sequence[str]) -> str:
    return "/".join(texts)
