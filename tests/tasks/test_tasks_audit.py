"""Overlap of splits and labels that hold, on planted faults and on whole data sets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import DataError
from harness.tasks.audit import (
    Finding,
    annotation_notes,
    label_audit,
    label_error,
    ngram_overlap,
    overlap,
    words,
)
from harness.tasks.gsm8k import Problem, load_split
from harness.tasks.records import data_sha256

FIELD_CASES = json.loads((Path(__file__).parents[1] / "field_cases.json").read_text())

# what the 8,792 labels of GSM8K come to: gold answers that contradict their own solution
GSM8K_TRAIN_SHA256 = "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"
GSM8K_ERRORS = {
    "train": [356, 786, 1154, 2770, 3334, 4796, 5350, 6157, 6760, 7182, 7444],
    "test": [1038],
}


def problem(question="Why?", solution="It is 2+3=<<2+3=5>>5.\n#### 5", gold="5", index=0):
    """A problem whose parts are chosen by the test."""
    return Problem(f"test/{index:05d}", question, solution, gold)


@pytest.fixture(scope="module")
def splits(data):
    """Both splits of the data set, and whether it is GSM8K itself."""
    folder, n_train, n_test = data
    train = load_split(folder / "train.jsonl", "train", n_train)
    test = load_split(folder / "test.jsonl", "test", n_test)
    return train, test, data_sha256(folder / "train.jsonl") == GSM8K_TRAIN_SHA256


def test_whole_data_set_has_no_overlap(splits):
    """No test question is a train question; planting one is found, whatever its case."""
    train, test, _ = splits
    assert overlap(train, test) == []
    planted = replace(test[3], question=f"  {train[9].question.upper()} ")
    assert overlap(train, [*test[:3], planted, *test[4:]]) == [(test[3].id, train[9].id)]


def test_field_case_eval_set_from_the_train_set():
    """Evaluation items that are also train items are named (E14)."""
    (case,) = [case for case in FIELD_CASES if case["id"] == "E14"]
    train = [problem(f"Question {i}?", index=i) for i in case["input"]["train"]]
    test = [problem(f"Question {i}?", index=i) for i in case["input"]["eval"]]
    found = [int(test_id.split("/")[1]) for test_id, _ in overlap(train, test)]
    assert found == case["expected"]["overlap"]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("He has 3 eggs.", "he  has\n3 eggs", True),
        ("Janet\u2019s ducks", "Janet's ducks", True),
        ("\uff13 eggs", "3 eggs", True),
        ("He has 3 eggs.", "He has 4 eggs.", False),
        ("3 eggs", "eggs 3", False),
    ],
)
def test_texts_are_compared_by_their_words(left, right, same):
    """Case, punctuation, blanks and Unicode forms do not make two questions differ."""
    assert (words(left) == words(right)) is same


def test_ngram_overlap_needs_a_run_of_thirteen_words():
    """Thirteen shared words in a row overlap, twelve do not, and short texts are counted."""
    run = [f"w{i}" for i in range(13)]
    train = [problem(" ".join(["start", *run, "end"]))]
    test = [
        problem(" ".join(["other", *run]), index=1),
        problem(" ".join(["other", *run[:12], "other"]), index=2),
        problem("too short", index=3),
    ]
    found = ngram_overlap(train, test)
    assert found.shared_ids == ("test/00001",)
    assert found.share == pytest.approx(1 / 3)
    assert found.too_short == 1


def test_ngram_overlap_of_a_whole_data_set(splits):
    """The share of overlapping test items is what counting them by hand gives."""
    train, test, real = splits
    found = ngram_overlap(train, test)
    if real:
        assert found.shared_ids == ("test/00581", "test/00602", "test/00632")
    joined = [f" {' '.join(words(p.question))} " for p in train]
    for item in test[:5]:
        text = words(item.question)
        runs = [f" {' '.join(text[i : i + 13])} " for i in range(len(text) - 12)]
        shared = any(run in question for run in runs for question in joined)
        assert (item.id in found.shared_ids) is shared


def test_labels_of_a_whole_data_set(splits):
    """Every gold answer of a clean set holds; GSM8K's contradictions are found, each of them."""
    train, test, real = splits
    for split, problems in (("train", train), ("test", test)):
        audit = label_audit(problems, None, seed=0)
        wrong = GSM8K_ERRORS[split] if real else []
        assert [finding.id for finding in audit.errors] == [f"{split}/{i:05d}" for i in wrong]
        assert audit.n_checked == len(problems)
        assert audit.annotations >= len(problems)


def test_a_planted_label_error_is_found(splits):
    """Changing one gold answer of a clean sample is one error, with its id and both numbers."""
    train, _, _ = splits
    clean = [p for p in train if label_error(p) is None][:120]
    assert label_audit(clean, 100, seed=0).errors == ()
    planted = [replace(clean[7], gold="987654321"), *clean[:7], *clean[8:]]
    (found,) = label_audit(planted, None, seed=0).errors
    assert found.id == clean[7].id
    assert found.reason.startswith("gold 987654321, but the solution concludes with ")


def test_the_sample_is_drawn_by_its_seed(splits):
    """One seed draws one sample; the sample is as large as asked, and drawn from all."""
    train, _, _ = splits
    spoilt = [replace(p, gold="987654321") for p in train]
    first, again, other = (label_audit(spoilt, 50, seed=seed) for seed in (1, 1, 2))
    ids = {finding.id for finding in first.errors}
    assert len(ids) == first.n_checked == 50
    assert first == again
    assert ids != {finding.id for finding in other.errors}


def test_a_sample_larger_than_the_data_is_refused():
    """Auditing fewer labels than the card asks for is an error, not a smaller audit."""
    with pytest.raises(DataError, match="1 problems, but the label audit samples 100"):
        label_audit([problem()], 100, seed=0)
    with pytest.raises(DataError, match="0 test problems"):
        ngram_overlap([problem()], [])


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("So 2+3=<<2+3=5>>5.\n#### 5", "5"),
        ("So 2+3=5 eggs in 7 days.\n#### 5", "5"),
        ("It is 5.\nThat is all.\n#### 5", "5"),
        ("It takes three days.\nSo 16*2=32 feet, which took three days.\n#### 3", "3"),
        ("It is $17 000.\n#### 17000", "17000"),
        ("It is $0.25 a can.\n#### 25", "25"),
        ("Half of it is 1/2.\n#### 0.5", "0.5"),
    ],
)
def test_labels_that_a_careful_reader_accepts(solution, gold):
    """The number that a solution concludes with may be wrapped in words, units or cents."""
    assert label_error(problem(solution=solution, gold=gold)) is None


@pytest.mark.parametrize(
    ("solution", "gold", "reason"),
    [
        ("So 2+3=<<2+3=5>>5.\n#### 6", "6", "gold 6, but the solution concludes with 5"),
        ("First 4.\nSo it is 9.\n#### 4", "4", "gold 4, but the solution concludes with 9"),
        ("x=<<4=4>>10\n#### 4", "4", "gold 4, but the solution concludes with 10"),
        ("It is 0.75.\n#### 1", "1", "gold 1, but the solution concludes with 0.75"),
        ("#### 5", "5", "no line of the solution holds a number"),
        ("It is five.\n#### 5", "5", "no line of the solution holds a number"),
        ("It is 5.\n#### five", "five", "gold answer 'five' is not a number"),
        ("It is 5.\n#### 5/0", "5/0", "gold answer '5/0' is not a number"),
    ],
)
def test_labels_that_are_errors(solution, gold, reason):
    """A gold answer that its own solution does not conclude with is an error, with the reason."""
    assert label_error(problem(solution=solution, gold=gold)) == reason


@pytest.mark.parametrize(
    ("annotation", "notes"),
    [
        ("16-3-4=9", []),
        ("10*20=200.00", []),
        (".5*(3+1)=2", []),
        ("20%*50=10", []),
        ("+30+46=76", []),
        ("10/3=3.33", ["<<10/3=3.33>> is rounded"]),
        ("20/3=7", ["<<20/3=7>> is rounded"]),
        ("20/3=6", ["<<20/3=6>> is rounded"]),
        ("5*4=21", ["<<5*4=21>> is wrong by 1"]),
        ("10/3=3.43", ["<<10/3=3.43>> is wrong by 0.0966667"]),
        ("560//10=56", ["<<560//10=56>> can't be read: a number is missing before '/'"]),
        ("five=5", ["<<five=5>> can't be read: a number is missing before 'f'"]),
        ("7", ["<<7>> can't be read: a number is missing before ''"]),
    ],
)
def test_annotations_are_evaluated(annotation, notes):
    """A calculator annotation is right, rounded, wrong or unreadable, and each is told apart."""
    solution = f"So it is <<{annotation}>>5.\n#### 5"
    assert annotation_notes(problem(solution=solution)) == notes


def test_rounded_annotations_are_notes_and_not_errors():
    """A rounded annotation and a gold in cents are reported apart from label errors."""
    rounded = problem(solution="10/3=<<10/3=3.33>>3.33\n#### 3.33", gold="3.33", index=1)
    cents = problem(solution="It is $0.25.\n#### 25", gold="25", index=2)
    audit = label_audit([rounded, cents, problem(index=3)], None, seed=0)
    assert audit.errors == ()
    assert audit.annotations == 2
    assert audit.notes == (
        Finding("test/00001", "<<10/3=3.33>> is rounded"),
        Finding(
            "test/00002", "gold 25 is a hundred times the number that the solution concludes with"
        ),
    )
