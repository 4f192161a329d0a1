"""A registered criterion and scores of two arms, as the tests of this folder need them."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.decisions import Criterion

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

Scores = Mapping[str, Mapping[str, float]]


@pytest.fixture
def registered() -> Callable[..., Criterion]:
    """Build the paired criterion of the GSM8K card, with the changes given."""

    def build(**changes: Any) -> Criterion:  # one value per field of Criterion
        stated = {
            "id": "primary",
            "metric": "accuracy",
            "weights": {"treatment": 1, "baseline": -1},
            "bounds": (0, 1),
            "margin": -0.05,
            "alpha": 0.05,
            "sides": 2,
        }
        return Criterion(**(stated | changes))

    return build


@pytest.fixture
def table() -> Callable[[int, int, int, int], tuple[Scores, list[str]]]:
    """Build 0/1 scores with the given both, treatment only, baseline only, neither; and the ids."""

    def build(both: int, b: int, c: int, neither: int) -> tuple[Scores, list[str]]:
        ids = [f"item-{i}" for i in range(both + b + c + neither)]
        treatment = [1] * both + [1] * b + [0] * c + [0] * neither
        baseline = [1] * both + [0] * b + [1] * c + [0] * neither
        scores = {
            "treatment": dict(zip(ids, treatment, strict=True)),
            "baseline": dict(zip(ids, baseline, strict=True)),
        }
        return scores, ids

    return build
