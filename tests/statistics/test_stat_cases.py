"""Every formula against values computed elsewhere: mpmath, scipy, statsmodels, confseq, papers."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.statistics import (
    Interval,
    PairedCounts,
    betting_interval,
    bonett_price,
    clopper_pearson,
    clustered_mean,
    contrast,
    empirical_bernstein,
    hoeffding,
    hoeffding_half_width,
    hoeffding_independent_cells,
    holm,
    mcnemar_exact,
    newcombe,
    pass_at_k,
    pass_pow_k,
    power_hoeffding_rule,
    predictable_empirical_bernstein,
    required_n_hoeffding,
    serfling_half_width,
    smallest_passing_gap,
    t_interval,
    tango,
    wilson,
)
from harness.statistics.paired import phi_corrected

CASES = json.loads((Path(__file__).parent / "stat_cases.json").read_text())["cases"]
Values = Mapping[str, Any]  # the cases are JSON of many shapes


def _limits(interval: Interval) -> dict[str, float]:
    return {
        "n": interval.n,
        "mean": interval.estimate,
        "estimate": interval.estimate,
        "half_width": interval.half_width,
        "lower": interval.lower,
        "upper": interval.upper,
    }


def _verdict(interval: Interval, margin: float) -> str:
    if interval.lower > margin:
        return "PASS"
    return "REFUTED" if interval.upper < margin else "INCONCLUSIVE"


def _table(given: Values) -> PairedCounts:
    b, c = given["treatment_only"], given["baseline_only"]
    return PairedCounts(0, b, c, given["n"] - b - c)


def _hoeffding_contrast(given: Values) -> dict[str, Any]:
    bounds = given["bounds"]
    of_arm = {a: tuple(b) for a, b in bounds.items()} if isinstance(bounds, dict) else tuple(bounds)
    c = contrast(given["weights"], of_arm)
    interval = hoeffding(c.values(given["scores"]), c.range, given["alpha"])
    ranges = {"range_lo": c.range_lo, "range_hi": c.range_hi, "range": c.range}
    return {**_limits(interval), **ranges, "verdict": _verdict(interval, given["margin"])}


def _hoeffding_paired_counts(given: Values) -> dict[str, Any]:
    t = _table(given)
    z_N = [1] * t.treatment_only + [-1] * t.baseline_only + [0] * t.neither
    interval = hoeffding(z_N, 2.0, given["alpha"])
    return {**_limits(interval), "verdict": _verdict(interval, given["margin"])}


def _wsr_betting(given: Values) -> dict[str, Any]:
    z_N, low, high, alpha = (given[k] for k in ("z", "range_lo", "range_hi", "alpha"))
    return _limits(betting_interval(z_N, low, high, alpha))


def _wsr_predictable(given: Values) -> dict[str, Any]:
    z_N, low, high, alpha = (given[k] for k in ("z", "range_lo", "range_hi", "alpha"))
    return _limits(predictable_empirical_bernstein(z_N, low, high, alpha))


def _mcnemar(given: Values) -> dict[str, Any]:
    m = mcnemar_exact(given["treatment_only"], given["baseline_only"])
    return {
        "p_two_sided": m.p_two_sided,
        "p_one_sided_treatment_better": m.p_one_sided_treatment_better,
        "p_mid_two_sided": m.p_mid_two_sided,
    }


def _newcombe_paired(given: Values) -> dict[str, Any]:
    cells = ("both", "treatment_only", "baseline_only", "neither")
    counts = PairedCounts(*(given[cell] for cell in cells))
    return {**_limits(newcombe(counts, given["alpha"])), "phi": phi_corrected(counts)}


def _paired_t(given: Values) -> dict[str, Any]:
    pairs = zip(given["treatment"], given["baseline"], strict=True)
    return _limits(t_interval([t - b for t, b in pairs], given["alpha"]))


def _clustered(given: Values) -> dict[str, Any]:
    groups = given["groups"]
    labels = [k for k, group in enumerate(groups) for _ in group]
    m = clustered_mean([z for group in groups for z in group], labels)
    return {"mean": m.mean, "se": m.se, "clusters": m.clusters}


def _binomial(given: Values) -> dict[str, Any]:
    arguments = (given["successes"], given["n"], given["alpha"])
    score, exact = wilson(*arguments), clopper_pearson(*arguments)
    return {
        "wilson_lower": score.lower,
        "wilson_upper": score.upper,
        "clopper_pearson_lower": exact.lower,
        "clopper_pearson_upper": exact.upper,
    }


def _passk(given: Values) -> dict[str, Any]:
    n, c, k = given["n"], given["c"], given["k"]
    return {"pass_at_k": pass_at_k(n, c, k), "pass_pow_k": pass_pow_k(n, c, k)}


def _holm_adjusted(given: Values) -> dict[str, Any]:
    h = holm(given["pvalues"], given["alpha"])
    return {"adjusted": list(h.adjusted), "reject": list(h.reject)}


def _required_n(given: Values) -> dict[str, Any]:
    r, alpha, sides = given["range"], given["alpha"], given["sides"]
    n = required_n_hoeffding(r, alpha, given["half_width"], sides)
    return {
        "n": n,
        "half_width_at_n": hoeffding_half_width(n, r, alpha, sides),
        "half_width_at_n_minus_1": hoeffding_half_width(n - 1, r, alpha, sides),
    }


def _passing_gap(given: Values) -> dict[str, Any]:
    g = smallest_passing_gap(given["n"], given["range"], given["margin"], given["alpha"])
    return {
        "half_width": g.half_width,
        "pass_needs_mean_above": g.pass_needs_mean_above,
        "refuted_needs_mean_below": g.refuted_needs_mean_below,
        "min_net_sum_pass": g.min_net_sum_pass,
        "max_net_sum_refuted": g.max_net_sum_refuted,
    }


def _power(given: Values) -> dict[str, Any]:
    rule = {"n": given["n"], "range": given["range"], "margin": given["margin"]}
    rule["alpha"] = given["alpha"]
    p = power_hoeffding_rule(
        discordance=given["discordant"], true_difference=given["true_diff"], **rule
    )
    return {"p_pass": p, "min_net_sum_pass": smallest_passing_gap(**rule).min_net_sum_pass}


KINDS: dict[str, Callable[[Values], dict[str, Any]]] = {
    "hoeffding_contrast": _hoeffding_contrast,
    "hoeffding_paired_counts": _hoeffding_paired_counts,
    "hoeffding_independent_cells": lambda g: {
        "half_width": hoeffding_independent_cells(
            g["weights"],
            [g["bounds"][1] - g["bounds"][0]] * len(g["weights"]),
            g["n_per_cell"],
            g["alpha"],
        )
    },
    "serfling_wor": lambda g: {
        "half_width": serfling_half_width(g["N"], g["n"], g["range"], g["alpha"])
    },
    "hoeffding_one_sided": lambda g: {
        "half_width": hoeffding_half_width(g["n"], g["range"], g["alpha"], sides=1)
    },
    "empirical_bernstein": lambda g: {
        **_limits(empirical_bernstein(g["z"], g["range"], g["alpha"], log_events=g["log_events"])),
        "variance": float(np.var(g["z"], ddof=1)),
    },
    "wsr_predmix_eb_ci": _wsr_predictable,
    "wsr_betting_ci": _wsr_betting,
    "mcnemar_exact": _mcnemar,
    "tango_score_ci": lambda g: _limits(tango(_table(g), g["alpha"])),
    "newcombe_paired_ci": _newcombe_paired,
    "bonett_price_ci": lambda g: _limits(bonett_price(_table(g), g["alpha"])),
    "paired_t_ci": _paired_t,
    "clustered_se": _clustered,
    "binomial_ci": _binomial,
    "pass_at_k": _passk,
    "holm": _holm_adjusted,
    "required_n_hoeffding": _required_n,
    "smallest_passing_gap": _passing_gap,
    "power_hoeffding_rule": _power,
}
NOT_A_NUMBER = {"fraction"}  # the same value as pass_at_k, as text


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_value_from_elsewhere(case: Values) -> None:
    """The formula gives the independently computed value within the case's own tolerance."""
    computed = KINDS[case["kind"]](case["input"])
    assert set(case["expected"]) - NOT_A_NUMBER <= set(computed)
    for name, expected in case["expected"].items():
        if name in NOT_A_NUMBER:
            continue
        if isinstance(expected, str | bool):
            assert computed[name] == expected, name
        elif isinstance(expected, list):
            assert computed[name] == pytest.approx(expected, abs=case["tolerance_abs"], rel=0), name
        else:
            assert math.isclose(
                computed[name], expected, rel_tol=0, abs_tol=case["tolerance_abs"]
            ), f"{name}: {computed[name]!r} is not {expected!r}"


def test_every_kind_of_case_is_computed() -> None:
    """No kind of formula here is left without a value from elsewhere, and no case unread."""
    assert {case["kind"] for case in CASES} == set(KINDS)
    assert len({case["id"] for case in CASES}) == len(CASES) > 60
