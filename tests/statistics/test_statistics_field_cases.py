"""Statistics that public projects got wrong, with the right answer."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import StatisticsError
from harness.statistics import (
    clustered_mean,
    mcnemar_exact,
    pass_at_k,
    pass_at_k_items,
    standard_error,
)

FILE = Path(__file__).parents[1] / "field_cases.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text())}


def _case(id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return CASES[id]["input"], CASES[id]["expected"]


@pytest.mark.parametrize("id", ["E01", "E02", "E04", "E05"])
def test_pass_at_k(id: str) -> None:
    """pass@k is the closed form, and refuses to answer with fewer samples than k."""
    given, expected = _case(id)
    if expected["value"] is None:
        with pytest.raises(StatisticsError, match="pass@k needs"):
            pass_at_k(given["n"], given["c"], given["k"])
    else:
        assert pass_at_k(given["n"], given["c"], given["k"]) == pytest.approx(expected["value"])


def test_pass_at_k_is_averaged_over_items() -> None:
    """Pooling the samples of all items gives another number than the mean over items."""
    per_item = pass_at_k_items([4, 4], [4, 0], 2)
    assert per_item.tolist() == [1.0, 0.0]
    assert float(per_item.mean()) == 0.5
    assert pass_at_k(8, 4, 2) > 0.75
    with pytest.raises(StatisticsError, match="2 sample counts and 1 correct"):
        pass_at_k_items([4, 4], [4], 2)
    with pytest.raises(StatisticsError, match="5 correct of 4"):
        pass_at_k(4, 5, 1)


def test_standard_error_of_one_value() -> None:
    """One value has no standard error: an error, never NaN."""
    given, expected = _case("E07")
    assert expected["value"] is None
    with pytest.raises(StatisticsError, match="at least 2"):
        standard_error(given["values"])


def test_paired_items_need_a_paired_test() -> None:
    """McNemar's p on the discordant counts, not the eight times larger unpaired p."""
    given, expected = _case("E08")
    p = mcnemar_exact(given["a_only"], given["b_only"]).p_two_sided
    assert p == pytest.approx(expected["p"], abs=expected["abs_tol"])
    assert p < expected["unpaired_p"] / 5


def test_repeats_are_not_sample_size() -> None:
    """Ten repeats of four questions have the standard error of four questions."""
    given, expected = _case("E09")
    repeats = given["repeats"]
    z_N = np.repeat(np.array(given["question_means"], dtype=float), repeats)
    mean = clustered_mean(z_N, np.repeat(np.arange(len(given["question_means"])), repeats))
    assert mean.se == pytest.approx(expected["value"], abs=1e-6)
    assert math.isclose(standard_error(z_N), expected["naive"], abs_tol=1e-6)
