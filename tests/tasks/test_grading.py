"""Reading and comparing final numbers: public bug reports, the cookbook's grader, properties."""

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.cards.registration import EvaluationSpec
from harness.records import ItemRow
from harness.tasks.grading import (
    MAX_DIGITS,
    WINDOW,
    all_numbers,
    boxed_number,
    final_number,
    is_exact,
    last_box,
)
from harness.tasks.gsm8k import Problem, gold_text
from harness.training.word_problems import grade

steady = settings(deadline=None, derandomize=True, max_examples=100, database=None)

FIELD_CASES = json.loads((Path(__file__).parents[1] / "field_cases.json").read_text())
GRADING = [case for case in FIELD_CASES if case["area"] == "grading"]


def of_kind(kind: str) -> list:
    """The grading cases of one kind, as test parameters."""
    return [pytest.param(c, id=c["id"]) for c in GRADING if c["input"]["kind"] == kind]


def graded(text: str, gold: str, answer: str = "final_number") -> ItemRow:
    """The row of one evaluated response, by the registered rule."""
    spec = EvaluationSpec(max_tokens=64, temperature=0.0, answer=answer)
    return grade(Problem("test/0", "How many?", f"#### {gold}", gold), text, spec, 9, "stop")


def test_every_grading_case_is_run():
    """The 30 cases are all of a kind that a test below runs."""
    assert sum(len(of_kind(kind)) for kind in ("grade", "gold", "parse_float")) == 30
    assert len(GRADING) == 30


@pytest.mark.parametrize("case", of_kind("grade"))
def test_field_case_grade(case):
    """A response from a public bug report is graded as the report says it should be."""
    given_, expected = case["input"], case["expected"]
    response = given_["response"]
    for stop in given_.get("stop", ()):
        response = response.partition(stop)[0]  # a service ends a response there
    row = graded(response, given_["gold"])
    assert row["correct"] is expected["correct"]
    if "answer" in expected:
        answer = expected["answer"]
        assert row["answer"] == (None if answer is None else str(Fraction(answer)))


@pytest.mark.parametrize("case", of_kind("gold"))
def test_field_case_gold(case):
    """The gold answer keeps its sign and loses its commas (G04, G09b)."""
    assert gold_text(case["input"]["gold_text"]) == case["expected"]["gold"]


@pytest.mark.parametrize("case", of_kind("parse_float"))
def test_field_case_whole_numbers(case):
    """A number is read whole, exponent and all (G26)."""
    read = [final_number(text) for text, _ in case["input"]["pairs"]]
    assert read == [Fraction(str(value)) for _, value in case["input"]["pairs"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so 60 -15 = 45", "45"),
        ("It is -7.", "-7"),
        ("x=-3", "-3"),
        ("3-7", "7"),
        ("ages 10-20", "20"),
        ("ages 10\u201320", "20"),
        ("left over: 10 - 3", "3"),
        ("- 5 apples", "5"),
        ("a debt of -$5", "-5"),
        ("**-7**", "-7"),
        ("1,234,567.89", "1234567.89"),
        ("3,4", "4"),
        ("2 2/3 cups", "8/3"),
        ("-1/2", "-1/2"),
        ("costs $.50", "0.5"),
        ("29.", "29"),
        ("\\frac{14}{2}", "7"),
        ("-\\frac{1}{2}", "-1/2"),
        ("2\\frac{2}{3}", "8/3"),
        ("\\dfrac12", "1/2"),
        ("25 m^2", "25"),
        ("(7)", "7"),
        ("50%", "50"),
        ("#### 42 apples", "42"),
        ("####\n\n42", "42"),
        ("#### $1,080.00\nthat is 3 more", "1080"),
        ("#### 5 then #### 6", "6"),
        ("#### 5 then \\boxed{7} 8", "7"),
    ],
)
def test_final_number_reads(text, expected):
    """Signs, currency, separators, fractions and units are read as a reader would."""
    assert final_number(text) == Fraction(expected)


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ("5 \\text{ apples}", "5"),
        ("\\text{5 apples}", "5"),
        ("\\textbf{42}", "42"),
        ("x = 5", "5"),
        ("\\$1{,}234.50", "1234.5"),
        ("9\\,500", "9500"),
        ("9,\\!500", "9500"),
        ("50\\%", "50"),
        ("- 5", "-5"),
        ("(-5)", "-5"),
        ("+5", "5"),
        ("007", "7"),
        ("25 \\text{ cm}^2", "25"),
        ("30^\\circ", "30"),
        ("\\left(7\\right)", "7"),
        ("12 \\mathrm{~km}", "12"),
        ("-\\frac{3}{4}", "-3/4"),
        ("1e3", "1000"),
    ],
)
def test_box_reads(box, expected):
    """A box is one number with its units, whatever LaTeX is around it."""
    text = f"First \\boxed{{1}}, then 2, so \\boxed{{{box}}} in the 3rd week."
    assert final_number(text) == boxed_number(text) == Fraction(expected)


@pytest.mark.parametrize(
    "box",
    ["", "\\text{five}", "3+4", "1,2", "\\sqrt{2}", "5^2", "10:30", "5 \\pm 1", "5/0", "2x-3"],
)
def test_box_without_one_number_is_no_answer(box):
    """A box that is not one number decides all the same: nothing else of the text is read."""
    text = f"It is 7. \\boxed{{{box}}}"
    assert boxed_number(text) is None
    assert final_number(text) is None
    row = graded(text, "7")
    assert (row["answer"], row["correct"]) == (None, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no box, 5", None),
        ("\\boxed{1} \\fbox{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{31} and \\boxed{3", "31"),
        ("\\boxed {4}", "4"),
        ("\\boxed 5", "5"),
        ("\\boxed", None),
        ("\\boxed{", None),
    ],
)
def test_last_complete_box(text, expected):
    """The last box whose braces close is the answer; a box that was cut off is not."""
    assert last_box(text) == expected


@pytest.mark.parametrize(
    ("text", "answer", "read"),
    [
        ("\\boxed{7} of 8", "boxed", "7"),
        ("\\boxed{7} of 8", "final_number", "7"),
        ("#### 7", "boxed", None),
        ("#### 7", "final_number", "7"),
        ("\\boxed{14/2}", "boxed", "7"),
    ],
)
def test_the_registered_rule_says_where_the_answer_stands(text, answer, read):
    """A boxed answer is read from a box alone; another may stand anywhere."""
    row = graded(text, "7", answer)
    assert (row["answer"], row["correct"]) == (read, read is not None)


@pytest.mark.parametrize(
    "text", ["", "none", "####", "#### ,", "\\boxed{}", "$", "-", "5/0", "{" * 99]
)
def test_no_number_is_no_answer(text):
    """A text without a number has no answer, which is wrong, and never an exception or zero."""
    row = graded(text, "0")
    assert (row["answer"], row["correct"]) == (None, False)
    assert not is_exact(None, Fraction(0))


def test_run_on_digits_are_no_number():
    """A digit string beyond any sensible number is refused without an error, and quickly."""
    assert final_number("9" * MAX_DIGITS) == Fraction("9" * MAX_DIGITS)
    assert final_number("9" * (MAX_DIGITS + 1)) is None
    assert final_number("9" * 20_000) is None
    assert final_number("\\boxed{" + "9" * 20_000 + "}") is None


@pytest.mark.parametrize("tail", [0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW])
def test_the_last_number_is_found_however_far_back(tail):
    """Text after the number does not hide it, whatever its length."""
    assert final_number("of 3 there are 1,234.5 " + "x" * tail) == Fraction("1234.5")
    assert final_number("of 3 there are 1,234.5" + " cm^2" * tail) == Fraction("1234.5")


@steady
@given(
    st.decimals(-(10**9), 10**9, places=3).map(lambda d: d.normalize()),
    st.sampled_from(["{}", "The answer is {}.", "#### {}", "so \\boxed{{{}}}", "**{}**", "={}"]),
    st.booleans(),
)
def test_written_numbers_are_read_back(value: Decimal, frame: str, commas: bool):
    """Any decimal, with or without thousands separators, comes back exactly."""
    text = frame.format(f"{value:,f}" if commas else f"{value:f}")
    assert final_number(text) == Fraction(value)


@steady
@given(st.text(alphabet="0123456789.,-+/ \n$%\\{}()#xe^", max_size=200))
def test_no_text_raises(text: str):
    """Whatever a model writes, reading it ends without an exception."""
    for read in (final_number, boxed_number, last_box, all_numbers):
        read(text)
    assert graded(text, "1")["correct"] in (True, False)


@steady
@given(st.text(alphabet="0123456789. -x\n", max_size=300))
def test_searching_backwards_finds_the_last_of_all(text: str):
    """The search from the end agrees with reading every number of the text in order."""
    numbers = all_numbers(text)
    assert final_number(text) == (numbers[-1] if numbers else None)


def test_all_numbers_in_order():
    """Every number of a text is read, in the order in which they stand."""
    assert all_numbers("3 + 4.5 = $7.50, or 1,000 and 1/2") == [
        Fraction(text) for text in ("3", "4.5", "7.5", "1000", "1/2")
    ]


AGREED = [
    ("\\boxed{7}", "7"),
    ("\\boxed{7.0}", "7"),
    ("\\boxed{1,234}", "1234"),
    ("\\boxed{$7}", "7"),
    ("\\boxed{\\$7}", "7"),
    ("\\boxed{7\\%}", "7"),
    ("\\boxed{-7}", "7"),
    ("\\boxed{-7}", "-7"),
    ("\\boxed{8}", "7"),
    ("\\boxed{5} no, \\boxed{7}", "7"),
    ("\\boxed{5} no, \\boxed{7}", "5"),
    ("\\boxed{0.5}", "0.5"),
    ("\\boxed{71}", "7"),
    ("\\boxed{1080}", "1080"),
    ("It is 7.", "7"),
    ("#### 7", "7"),
]


@pytest.mark.parametrize(("text", "gold"), AGREED)
def test_boxed_grading_agrees_with_the_training_reward(text, gold):
    """On plain numeric answers the box is graded as the cookbook's environment rewards it."""
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv

    env = MathEnv("1+1?", gold, renderer=None)
    assert is_exact(boxed_number(text), Fraction(gold)) is env.check_answer(text)


@settings(steady, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(answer=st.integers(-2000, 2000), gold=st.integers(-2000, 2000), same=st.booleans())
def test_boxed_grading_agrees_with_the_training_reward_on_integers(answer, gold, same):
    """Right and wrong integers are graded alike in training and in evaluation."""
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv

    wanted = answer if same else gold
    text = f"so it is \\boxed{{{answer}}}"
    env = MathEnv("1+1?", str(wanted), renderer=None)
    assert is_exact(boxed_number(text), Fraction(wanted)) is env.check_answer(text)


# from public bug reports: what graders of others and of ours have read wrongly
REPORTED = [
    ("fragment_of_an_expression", "\\boxed{2½}", "2", False),
    ("fragment_of_an_expression", "\\boxed{2½}", "5/2", True),
    ("fragment_of_an_expression", "\\boxed{5²}", "5", False),
    ("fragment_of_an_expression", "\\boxed{5!}", "5", False),
    ("fragment_of_an_expression", "\\boxed{√16}", "16", False),
    ("fragment_of_an_expression", "\\boxed{±5}", "5", False),
    ("fragment_of_an_expression", "\\boxed{≥5}", "5", False),
    ("fragment_of_an_expression", "\\boxed{5π}", "5", False),
    ("latex_shapes_not_read", "\\boxed{\\frac{-6}{2}}", "-3", True),
    ("latex_shapes_not_read", "\\boxed{\\frac3{4}}", "3/4", True),
    ("latex_shapes_not_read", "\\boxed{\\frac{3}4}", "3/4", True),
    ("latex_shapes_not_read", "\\boxed{\\cfrac{3}{4}}", "3/4", True),
    ("latex_shapes_not_read", "\\boxed{\\text{\\textbf{42}}}", "42", True),
    ("latex_shapes_not_read", "\\boxed{\\boldsymbol{42}}", "42", True),
    ("latex_shapes_not_read", "\\boxed{-{5}}", "-5", True),
    (
        "hash_marker",
        "#### Step 1: eggs\n16-3-4=9\n#### Step 2: money\n9*2=18\nShe makes 18 dollars.",
        "18",
        True,
    ),
    ("hash_marker", "#### 18\n\n#### Explanation\nWe used 2 steps.", "18", True),
    ("hash_marker", "#### 9 * 2 = 18", "18", True),
    ("grouped_by_blanks", "#### 12 500", "12", False),
    ("grouped_by_blanks", "#### 12 500", "12500", True),
    ("grouped_by_blanks", "\\boxed{12 500}", "12500", True),
    ("grouped_by_blanks", "\\boxed{12\\;500}", "12500", True),
    ("grouped_by_blanks", "\\boxed{1,23,456}", "123456", True),
    ("signs", "\\boxed{\u20115}", "5", False),
    ("signs", "\\boxed{\u20115}", "-5", True),
    ("signs", "\\boxed{\u20105}", "-5", True),
    ("signs", "\\boxed{—5}", "-5", True),
    ("signs", "\\boxed{\uff0d5}", "-5", True),
    ("signs", "#### -£5", "-5", True),
    ("signs", "#### - 5", "-5", True),
    ("magnitudes", "\\boxed{5 million}", "5", False),
    ("magnitudes", "\\boxed{2 dozen}", "2", False),
]


@pytest.mark.parametrize(("kind", "response", "gold", "correct"), REPORTED)
def test_shapes_that_graders_have_misread(kind, response, gold, correct):
    """Fragments, LaTeX shapes, headings behind ####, blanks and signs: right is right, no more."""
    assert is_exact(final_number(response), Fraction(gold)) is correct, kind


@pytest.mark.parametrize("number", [0, 7, 42, 1250, 98765, 1000000])
def test_a_right_number_is_right_in_every_usual_shape(number):
    """Boxed, marked, with units, currency, separators and a word or two around it."""
    shapes = [
        "\\boxed{%d}", "\\boxed{%d\\%%}", "\\boxed{\\$%d}", "\\boxed{\\text{%d} \\text{ eggs}}",
        "#### %d", "#### $%d.00", "#### The answer is %d", "3 steps: %d dollars!", "x = %d",
        "\\boxed{x = %d}", "\\boxed{%d^\\circ}",
    ]  # fmt: skip
    grouped = f"So \\boxed{{{number:,}}}."

    assert [s for s in shapes if final_number("3 and 4. " + s % number) != number] == []
    assert final_number(grouped) == number


@pytest.mark.parametrize("number", [2, 7, 42, 1250, 98765])
def test_a_number_that_is_a_part_of_something_else_is_no_answer(number):
    """Powers, roots, ranges, magnitudes, bounds and choices are other values, or none."""
    shapes = [
        "%d²", "√%d", "±%d", "%d million", "%d dozen", "%d!", ">%d", "≤ %d", "-%d", "—%d", "%d.5",
        "%d½", "%dπ", "%d or 3", "%d^2", "3 \\times %d", "%dk", "half %d",
    ]  # fmt: skip
    boxed = [f"\\boxed{{{shape % number}}}" for shape in shapes]

    assert [text for text in boxed if is_exact(final_number(text), Fraction(number))] == []
