"""Error rates of the decision code itself: 10,000 simulated experiments per method, fixed seeds.

The truth sits exactly at the margin, so every VALIDATED and every REFUTED is false. Methods that
see nothing but the 2x2 table are decided once per distinct table and counted as often as it came.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from families import rule_of
from numpy.typing import NDArray

from harness.decisions import (
    METHODS,
    Criterion,
    Outcome,
    Verdict,
    decide,
    decision,
)

Registered = Callable[..., Criterion]
Table = Callable[[int, int, int, int], tuple[Any, list[str]]]
EXPERIMENTS = 10_000
N = 60
NOMINAL = 0.025  # of each side, at a two-sided alpha of .05
ORDER_FREE = sorted(
    name for name, m in METHODS.items() if m.finite_sample_valid and name != "paired_betting_cs"
)


def _tables(seed: int, discordance: float, truth: float, n: int = N) -> NDArray[np.int64]:
    """(experiments, 3): items won, lost and equal, with ``truth`` the expected difference."""
    shares = [(discordance + truth) / 2, (discordance - truth) / 2, 1 - discordance]
    return np.random.default_rng(seed).multinomial(n, shares, EXPERIMENTS)


def _verdicts(
    criterion: Criterion, tables: NDArray[np.int64], table: Table
) -> dict[Verdict, float]:
    share: dict[Verdict, float] = dict.fromkeys(Verdict, 0.0)
    for (b, c, equal), count in zip(*np.unique(tables, axis=0, return_counts=True), strict=True):
        scores, ids = table(int(equal), int(b), int(c), 0)
        share[decide(criterion, scores, ids).verdict] += count / EXPERIMENTS
    return share


@pytest.mark.parametrize("name", ORDER_FREE)
@pytest.mark.parametrize("discordance", [0.15, 0.5, 1.0])
def test_at_the_margin_neither_verdict_is_more_frequent_than_nominal(
    registered: Registered, table: Table, name: str, discordance: float
) -> None:
    """False VALIDATED and false REFUTED each stay at or below alpha/2 for a finite sample."""
    margin = 0.0 if name == "mcnemar_exact" else -0.1
    criterion = registered(method=name, margin=margin)
    share = _verdicts(criterion, _tables(101, discordance, margin), table)
    assert share[Verdict.INVALID] == 0.0
    assert share[Verdict.VALIDATED] <= NOMINAL
    assert share[Verdict.REFUTED] <= NOMINAL


@pytest.mark.parametrize("name", ORDER_FREE)
def test_simulation_can_tell(registered: Registered, table: Table, name: str) -> None:
    """Far above the margin the same experiments validate, far below they refute, mostly."""
    margin = 0.0 if name == "mcnemar_exact" else -0.1
    criterion = registered(method=name, margin=margin)
    for truth, verdict in ((margin + 0.75, Verdict.VALIDATED), (margin - 0.75, Verdict.REFUTED)):
        share = _verdicts(criterion, _tables(102, 0.9, truth), table)
        assert share[verdict] > 0.5


def test_one_sided_rule_uses_all_of_alpha(registered: Registered, table: Table) -> None:
    """One-sided, the exact test exceeds alpha/2 at the margin and stays within alpha."""
    criterion = registered(method="mcnemar_exact", margin=0.0, sides=1)
    share = _verdicts(criterion, _tables(103, 0.9, 0.0, 200), table)
    assert NOMINAL < share[Verdict.VALIDATED] <= 2 * NOMINAL


def test_betting_at_the_margin(registered: Registered) -> None:
    """Betting on every experiment in its own order stays at or below alpha/2 on both sides."""
    n, margin, d = 24, -0.1, 0.6
    ids = [str(i) for i in range(n)]
    criterion = registered(method="paired_betting_cs", order_key="key", margin=margin)
    shares = [(d + margin) / 2, (d - margin) / 2, 1 - d]
    z_E_N = np.random.default_rng(104).choice([1, -1, 0], size=(EXPERIMENTS, n), p=shares)
    said: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
    for z_N in z_E_N:
        treatment = dict(zip(ids, (z_N > 0).tolist(), strict=True))
        baseline = dict(zip(ids, (z_N < 0).tolist(), strict=True))
        said[decide(criterion, {"treatment": treatment, "baseline": baseline}, ids).verdict] += 1
    assert said[Verdict.INVALID] == 0
    assert 0 < said[Verdict.VALIDATED] <= NOMINAL * EXPERIMENTS
    assert said[Verdict.REFUTED] <= NOMINAL * EXPERIMENTS


def test_picking_the_best_of_five_needs_holm(registered: Registered, table: Table) -> None:
    """Five criteria at the margin: one of them passes too often, after Holm it does not."""
    criterion = registered(method="mcnemar_exact", margin=0.0)
    decided: dict[tuple[int, ...], Outcome] = {}
    families = np.stack([_tables(seed, 0.8, 0.0) for seed in range(200, 205)], axis=1)
    names = [f"c{i}" for i in range(families.shape[1])]
    rule = rule_of("any_may_pass", names, {}, second_look=False)
    naive = held = 0
    for family in families:
        outcomes = []
        for b, c, equal in family.tolist():
            if (b, c, equal) not in decided:
                scores, ids = table(equal, b, c, 0)
                decided[b, c, equal] = decide(criterion, scores, ids)
            outcomes.append(decided[b, c, equal])
        naive += any(outcome.validated for outcome in outcomes)
        held += decision(rule, dict(zip(names, outcomes, strict=True))).verdict is Verdict.VALIDATED
    assert naive / EXPERIMENTS > 2 * NOMINAL
    assert held / EXPERIMENTS <= NOMINAL


def test_asymptotic_method_exceeds_its_level(registered: Registered, table: Table) -> None:
    """The same experiments catch Tango above alpha/2 at n=60: it claims no finite-sample level."""
    assert not METHODS["paired_tango"].finite_sample_valid
    criterion = registered(method="paired_tango", margin=-0.1)
    share = _verdicts(criterion, _tables(101, 0.15, -0.1), table)
    assert share[Verdict.REFUTED] > 1.2 * NOMINAL
