import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.audit.agreement import Agreement, agreement_problems, compare
from harness.cards.card import Tolerance

NUMBERS = st.floats(-1e3, 1e3)
TIGHT = Tolerance(atol=1e-6, rtol=1e-6, min_cosine=0.99999)


def _problems(ours, reference, tolerance=TIGHT):
    return agreement_problems("gradient", compare(ours, reference), tolerance, "t")


@given(
    pairs=st.lists(st.tuples(NUMBERS, st.floats(-0.1, 0.1)), min_size=1, max_size=40),
    atol=st.floats(0, 0.1),
    rtol=st.floats(0, 1e-2),
)
def test_kept_pairs_decide_like_every_element(pairs, atol, rtol):
    """The few pairs that evidence keeps pass a tolerance exactly if all elements do."""
    reference = np.array([pair[0] for pair in pairs])
    ours = reference + np.array([pair[1] for pair in pairs])
    everywhere = bool(np.all(np.abs(ours - reference) <= atol + rtol * np.abs(reference)))
    tolerance = Tolerance(atol=atol, rtol=rtol)

    assert everywhere == (_problems(ours, reference, tolerance) == [])


def test_equal_vectors_agree():
    """No difference is within any tolerance, zero included."""
    exact = Tolerance(atol=0.0, rtol=0.0, min_cosine=0.999999999)

    assert [] == _problems([0.5, -2.0], [0.5, -2.0], exact)


def test_difference_is_named_with_its_bound():
    """A difference says its size, where it is, and what was allowed."""
    (line,) = _problems([1.0, 2.001], [1.0, 2.0])

    assert "differs by 0.001 where the reference is 2, bound 3e-06" in line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_never_agrees(value):
    """NaN and infinity fail on either side, even against themselves."""
    assert _problems([1.0, value], [1.0, 2.0])
    assert _problems([1.0, 2.0], [1.0, value])
    assert _problems([1.0, value], [1.0, value])


def test_direction_is_judged_apart_from_size():
    """A loose tolerance on elements does not excuse another direction."""
    loose = Tolerance(atol=0.9, rtol=0.0, min_cosine=0.9)

    assert any("cosine" in line for line in _problems([1.0, 0.8], [1.0, 0.0], loose))


def test_rounding_around_zero_has_no_direction():
    """Two gradients that are zero up to rounding agree, whatever way they point."""
    assert [] == _problems([1e-16, -1e-17], [0.0, 0.0])


def test_zero_against_a_real_gradient_is_a_difference():
    """An arm that sends no gradient does not agree with one that does."""
    assert _problems([0.0, 0.0], [0.3, 0.1])


def test_lengths_that_differ_are_a_problem():
    """Values without a partner are not left out of the comparison."""
    (line,) = _problems([1.0], [1.0, 2.0])

    assert "1 values against 2" in line


def test_an_empty_comparison_is_a_problem():
    """Nothing compared is nothing shown."""
    assert ["gradient: no values"] == [line[:19] for line in _problems([], [])]


def test_a_missing_tolerance_is_a_problem():
    """Without a tolerance of the card nothing can agree."""
    agreement = compare([1.0], [1.0])

    assert agreement_problems("loss", agreement, None, "baseline_loss") == [
        "loss: no tolerance 'baseline_loss' is stated, so nothing can agree; add it"
    ]


def test_agreement_survives_storage():
    """Evidence with NaN decides the same after it was stored."""
    agreement = compare([math.nan], [1.0])

    assert agreement_problems("x", Agreement.of(agreement.plain()), TIGHT, "t")
