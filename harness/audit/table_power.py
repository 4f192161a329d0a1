"""Power of the methods that decide by wins, losses and ties, asked of the methods themselves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.cards import Experiment
from harness.cards.card import SecondLook
from harness.decisions import Criterion, Unit
from harness.decisions.tables import (
    ErrorRates,
    n_for_power,
    p_validated,
    two_look_rates,
    wins_needed,
)
from harness.names import BY_ESTIMATE
from harness.statistics.paired import t_limits
from harness.statistics.special import noncentral_t_cdf

EXPERIMENTS = 10_000
SEED = 0
ENOUGH = 0.5  # a rule that fails more often than not at its author's own effect is a problem


@dataclass(frozen=True, slots=True)
class TableRow:
    """The rule at one assumed discordance; `smallest_net` is None if nothing validates there."""

    discordance: float
    smallest_net: int | None
    p_at_tie: float
    p_at_margin: float
    p_at_expected: float | None


@dataclass(frozen=True, slots=True)
class LookRow:
    """Simulated shares of verdicts at one true difference and one spread between seeds.

    Both looks score the same items, so their noise is shared in part. `rates` are those of looks
    that share none; `repeated` those of a second look that repeats the first, which is one look.
    """

    truth: float
    what: str
    seed_sd: float
    rates: ErrorRates
    repeated: ErrorRates


@dataclass(frozen=True, slots=True)
class TablePower:
    """What is known before the run of a method that has no closed form; `lines` prints it."""

    criterion: Criterion
    n: int
    expected_effect: float
    expected_discordance: float
    n_for_80_at_expected: int | None
    rows: tuple[TableRow, ...]
    looks: tuple[LookRow, ...]

    def problems(self) -> list[str]:
        """One line if the rule fails more often than not at the author's own effect."""
        expected = next(r for r in self.rows if r.discordance == self.expected_discordance)
        if expected.p_at_expected is not None and expected.p_at_expected >= ENOUGH:
            return []
        needed = self.n_for_80_at_expected
        advice = f"use at least {needed} items, or another margin" if needed else "another margin"
        return [
            f"at the expected effect {_points(self.expected_effect)} and discordance "
            f"{100 * self.expected_discordance:g}%, P(VALIDATED) = "
            f"{_percent(expected.p_at_expected)}%: {advice}, or the registration must acknowledge "
            "it"
        ]

    def lines(self) -> list[str]:
        """The block as text, one statement a line; points are 100 times the score."""
        c, rows = self.criterion, self.rows
        sided = {1: "one-sided", 2: "two-sided"}[c.sides]
        level = "no interval" if c.method in BY_ESTIMATE else f"alpha {c.alpha:g} {sided}"
        at = "/".join(f"{100 * row.discordance:g}" for row in rows)
        nets = "/".join("none" if r.smallest_net is None else f"{r.smallest_net:+d}" for r in rows)
        return [
            f"design: n={self.n}, margin {_points(c.margin)}, {c.method}, {level}",
            f"VALIDATED from a net of {nets} items at discordance {at}%",
            f"P(VALIDATED) at discordance {at}%: arms truly equal "
            f"{_slashed(r.p_at_tie for r in rows)}%, truth at the margin "
            f"{_slashed(r.p_at_margin for r in rows)}%, at the expected effect "
            f"{_points(self.expected_effect)} {_slashed(r.p_at_expected for r in rows)}%",
            f"n for 80% power at the expected effect: {self.n_for_80_at_expected or 'no n'}",
            *(self._look_line(row) for row in self.looks),
        ]

    def _look_line(self, row: LookRow) -> str:
        r, one = row.rates, row.repeated
        return (
            f"two looks, {EXPERIMENTS} simulated experiments at a true gap of "
            f"{_points(row.truth)} ({row.what}), discordance "
            f"{100 * self.expected_discordance:g}%, seed sd {100 * row.seed_sd:g} points: "
            f"VALIDATED {_percent(r.validated)} to {_percent(one.validated)}%, REFUTED "
            f"{_percent(r.refuted)} to {_percent(one.refuted)}%, INCONCLUSIVE "
            f"{_percent(one.inconclusive)} to {_percent(r.inconclusive)}%, second look "
            f"{_percent(r.second_look)}%; from looks without shared noise to a second look that "
            "repeats the first, and on the same items the truth lies between"
        )


def table_power(
    criterion: Criterion,
    n: int,
    discordances: Sequence[float],
    expected_discordance: float,
    expected_effect: float,
    look: SecondLook | None,
    seed_sds: tuple[float, ...],
) -> TablePower:
    """Enumerate tables for each discordance, and simulate two looks where a second is registered.

    Raises:
        CardError: a discordance or effect that no table has.
    """
    c, looks = criterion, []
    truths = {c.margin: "the margin", 0.0: "equal arms", expected_effect: "the expected effect"}
    for truth, what in truths.items() if look is not None else ():
        for sd in seed_sds or (0.0,):
            rates, repeated = (
                two_look_rates(c, asked, n, expected_discordance, truth, sd, EXPERIMENTS, SEED)
                for asked in (look, None)
            )
            looks.append(LookRow(truth, what, sd, rates, repeated))
    return TablePower(
        criterion=c,
        n=n,
        expected_effect=expected_effect,
        expected_discordance=expected_discordance,
        n_for_80_at_expected=n_for_power(c, expected_discordance, expected_effect),
        rows=tuple(_row(c, n, d, expected_effect) for d in discordances),
        looks=tuple(looks),
    )


def seed_power_lines(criterion: Criterion, experiment: Experiment) -> list[str]:
    """What is known of a method that tables do not decide."""
    power, k = experiment.registration.power, len(criterion.seeds)
    if criterion.unit != Unit.SEEDS:
        return [
            f"no power block: that of {criterion.method} depends on more than wins and losses (the "
            "order of the items, their clusters, or several seeds), which is not known beforehand"
        ]
    if not power.seed_sds:
        return ["no power block: register power.seed_sds, the spread between seeds to expect"]
    effect = power.expected_effects.get(criterion.id, power.expected_effect)
    norm = sum(weight**2 for weight in criterion.contrast().weights.values()) ** 0.5
    lines = []
    for sd in power.seed_sds:
        se = norm * sd / k**0.5
        if se == 0.0:
            continue
        needed = t_limits(0.0, se, k - 1, k, criterion.alpha, criterion.sides).upper / se
        p = 1.0 - noncentral_t_cdf(needed, k - 1, (effect - criterion.margin) / se)
        lines.append(
            f"{k} seeds with a standard deviation of {100 * sd:g} points an arm: P(VALIDATED) at "
            f"the expected effect {_points(effect)} is {_percent(p)}%"
        )
    return lines


def _row(criterion: Criterion, n: int, discordance: float, effect: float) -> TableRow:
    k = round(n * discordance)
    wins = int(wins_needed(criterion, n, k, k)[0])

    def p_at(truth: float) -> float | None:
        return p_validated(criterion, n, discordance, truth) if abs(truth) <= discordance else None

    return TableRow(
        discordance=discordance,
        smallest_net=2 * wins - k if wins <= k else None,
        p_at_tie=p_validated(criterion, n, discordance, 0.0),
        p_at_margin=p_at(criterion.margin) or 0.0,
        p_at_expected=p_at(effect),
    )


def _points(value: float) -> str:
    return f"{100 * value:+.2f} points"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _slashed(values: Iterable[float | None]) -> str:
    return "/".join(_percent(value) for value in values)
