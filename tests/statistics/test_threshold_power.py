import math

import numpy as np
import pytest

from harness.errors import StatisticsError
from harness.statistics.threshold_power import threshold_power


def block(**changes):
    """The difference of differences of the lag cards at 500 items."""
    stated = {
        "n": 500,
        "range": 4.0,
        "alpha": 0.05,
        "sides": 2,
        "margin": 0.03,
        "refuted_margin": 0.01,
        "discordances": [0.2],
        "expected_effect": 0.03,
    }
    return threshold_power(**(stated | changes))


def test_half_width_is_hoeffdings_at_range_four():
    """4 sqrt(ln 40 / 1000) = 24.3 points: no interval of that range decides at 500 items."""
    assert block().half_width == pytest.approx(4 * math.sqrt(math.log(40) / 1000), abs=1e-12)


def test_chances_are_those_of_a_simulation():
    """Two independent pairs, each item won or lost with probability d/2."""
    generator = np.random.Generator(np.random.PCG64(1))
    z = generator.choice([-1, 0, 1], p=[0.1, 0.8, 0.1], size=(2, 20_000, 500)).sum(axis=(0, 2))
    (row,) = block().rows

    assert row.standard_error == pytest.approx(0.0283, abs=1e-4)
    # the normal curve knows no steps of 1/500, so it may be half a step off
    assert row.validated_at_none == pytest.approx(float((z >= 15).mean()), abs=0.02)
    assert row.refuted_at_none == pytest.approx(float((z < 5).mean()), abs=0.04)


def test_an_effect_at_the_margin_is_validated_half_the_time():
    """The rule is symmetric about its margin."""
    assert block().rows[0].validated_at_expected == pytest.approx(0.5)
    assert block().problems() == []
    assert "below the margin" in block(expected_effect=0.02).problems()[0]


def test_lines_name_the_chance_of_a_false_validation():
    """A reader learns before the run what chance alone will do."""
    text = "\n".join(block(discordances=[0.1, 0.2]).lines())

    assert "no effect at all: VALIDATED 7/14%" in text
    assert "range 4" in text


def test_without_a_refuting_margin_nothing_is_refuted():
    """A supporting threshold has one side."""
    assert block(refuted_margin=None).rows[0].refuted_at_none == 0.0


@pytest.mark.parametrize("changes", [{"n": 0}, {"range": 0.0}, {"discordances": [0.0]}])
def test_numbers_out_of_range_are_refused(changes):
    """Nothing is computed from a design that can't be."""
    with pytest.raises(StatisticsError):
        block(**changes)


def test_a_range_that_refutes_has_two_ends_and_graded_scores_a_mean_squared_difference():
    """Two pairs of graded scores on 64 items: chances of [-5, +5) points, as simulated."""
    generator = np.random.Generator(np.random.PCG64(2))
    differences = generator.normal(0.0, math.sqrt(0.06), (2, 20_000, 64)).sum(axis=0).mean(axis=1)
    power = block(n=64, margin=0.05, refuted_margin=0.05, refuted_from=-0.05, discordances=[0.06])
    (row,) = power.rows

    assert row.validated_at_none == pytest.approx(float((differences >= 0.05).mean()), abs=0.01)
    inside = (differences >= -0.05) & (differences < 0.05)
    assert row.refuted_at_none == pytest.approx(float(inside.mean()), abs=0.01)
    assert "refuted below +5.00% and not below -5.00%" in power.lines()[0]
