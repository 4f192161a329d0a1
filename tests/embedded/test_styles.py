from random import Random

import pytest

from harness.embedded.families import FAMILIES
from harness.embedded.problems import generate
from harness.embedded.sampling import boxed_answer, last_answer
from harness.embedded.styles import HABITS, STYLES, draw_style, write_answer

PROBLEM = generate().train[0]


def test_each_family_has_habits_that_sum_to_100() -> None:
    """No family lacks a row, and a row is a distribution in per cent."""
    assert set(HABITS) == {family.name for family in FAMILIES}
    assert all(sum(row) == 100 and len(row) == len(STYLES) for row in HABITS.values())


@pytest.mark.parametrize(
    ("style", "boxed"),
    [("worked", True), ("guessed", True), ("hashed", False), ("restated", False), ("told", False)],
)
def test_a_style_boxes_or_does_not(style: str, boxed: bool) -> None:
    """Only the boxed styles carry a boxed answer, and it is the gold one."""
    assert boxed_answer(write_answer(PROBLEM, style)) == (str(PROBLEM.gold) if boxed else None)


@pytest.mark.parametrize("style", ["worked", "hashed", "guessed", "told"])
def test_a_plain_style_ends_in_the_gold_answer(style: str) -> None:
    """Read to the end, these styles give the gold answer without a box too."""
    assert last_answer(write_answer(PROBLEM, style)) == str(PROBLEM.gold)


def test_a_restated_answer_ends_in_another_number() -> None:
    """A reader of the last number is misled by a restated answer."""
    assert last_answer(write_answer(PROBLEM, "restated")) == str(max(PROBLEM.numbers))


def test_about_half_of_the_answers_are_boxed() -> None:
    """Boxed answers are between 50 and 65 per cent of the pretraining text."""
    rng = Random(0)
    styles = [draw_style(problem, rng) for problem in generate().train]
    assert 0.50 <= sum(style in ("worked", "guessed") for style in styles) / len(styles) <= 0.65


def test_an_unknown_style_is_refused() -> None:
    """A misspelt style raises and lists the right ones."""
    with pytest.raises(ValueError, match="'boxed' is unknown; choose one of worked"):
        write_answer(PROBLEM, "boxed")
