"""Loading problems: ids, gold answers, and one clear line for every broken file."""

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.errors import DataError
from harness.tasks.gsm8k import Problem, gold_text, load_split, load_task
from harness.tasks.records import data_sha256

CARD = Path(__file__).parents[2] / "experiments" / "cards" / "gs1_vs_grpo_gsm8k_2b.json"
GOOD = {"question": "What is 2+3?", "answer": "2+3=<<2+3=5>>5\n#### 5"}


def write(path: Path, *lines: object) -> Path:
    """Write each line as it is, or as JSON where it is not text."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def test_problems_are_numbered_in_file_order(tmp_path):
    """An id is the split and the place in the file, so that results can be joined by it."""
    second = {"question": "Debt?", "answer": "4-9=-5\n#### -5"}
    third = {"question": "Price?", "answer": "It is $1,080.50.\n#### 1,080.50"}
    problems = load_split(write(tmp_path / "x.jsonl", GOOD, second, third), "test", 3)
    assert [p.id for p in problems] == ["test/00000", "test/00001", "test/00002"]
    assert [p.gold for p in problems] == ["5", "-5", "1080.50"]
    assert [p.gold_value for p in problems] == [5, -5, Fraction("1080.5")]
    assert problems[0] == Problem("test/00000", GOOD["question"], GOOD["answer"], "5")


def test_whole_data_set_loads(data):
    """Every record of a complete data set becomes a problem with a numeric gold answer."""
    folder, n_train, n_test = data
    for split, count in (("train", n_train), ("test", n_test)):
        problems = load_split(folder / f"{split}.jsonl", split, count)
        assert len({p.id for p in problems}) == len(problems) == count
        assert all(isinstance(p.gold_value, Fraction) for p in problems)


def test_task_takes_what_the_card_counts(data):
    """A card that evaluates fewer items than the file holds gets the first of them."""
    folder, n_train, _ = data
    card = load_experiment(CARD, "full").card
    dataset = card.dataset.model_copy(update={"n_examples": n_train})
    evaluation = card.eval.model_copy(update={"n_examples": 7})
    task = load_task(folder, card.model_copy(update={"dataset": dataset, "eval": evaluation}))
    assert len(task.train) == n_train
    assert [p.id for p in task.test] == [f"test/{i:05d}" for i in range(7)]
    for split in ("train", "test"):
        content = (folder / f"{split}.jsonl").read_bytes()
        assert task.sha256s[split] == hashlib.sha256(content).hexdigest()


def test_sha256_is_of_the_bytes(tmp_path):
    """The hash of a data file is the hash of its bytes, and changes with them."""
    path = write(tmp_path / "x.jsonl", GOOD)
    assert data_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    before = data_sha256(path)
    write(path, GOOD, GOOD)
    assert data_sha256(path) != before


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("a #### 1\n#### 2", "2"), ("####3 ", "3"), ("#### 2,520,000", "2520000"), ("none", None)],
)
def test_gold_is_what_follows_the_last_mark(answer, gold):
    """The gold answer follows the last ####, without commas and blanks."""
    assert gold_text(answer) == gold


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "0 records, expected 2"),
        ([GOOD], "1 records, the card says 2; the file is truncated"),
        ([GOOD, '{"question": "What is'], "line 2 of 2 is not JSON"),
        ([GOOD, ""], "line 2 of 2 is not JSON"),
        ([GOOD, {"question": "x"}], r"line 2 of 2 has \['question'\]; a record has exactly"),
        ([{**GOOD, "id": 3}, GOOD], r"line 1 of 2 has \['answer', 'id', 'question'\]"),
        ([GOOD, [1, 2]], "line 2 of 2 has list"),
        ([GOOD, {**GOOD, "question": 5}], "line 2 of 2 has question 5; it must be"),
        ([GOOD, {**GOOD, "question": " "}], "line 2 of 2 has question ' '"),
        ([GOOD, {**GOOD, "answer": "#### five"}], "line 2 has the gold answer 'five'"),
        ([GOOD, {**GOOD, "answer": "#### 3 4"}], "line 2 has the gold answer '3 4'"),
        ([GOOD, {**GOOD, "answer": "it is 5"}], "line 2 has the gold answer missing"),
        ([GOOD, {**GOOD, "answer": "#### " + "9" * 99}], "line 2 has the gold answer '999"),
        ([GOOD, {**GOOD, "answer": "#### nan"}], "line 2 has the gold answer 'nan'"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path, lines, message):
    """Each way in which a file can be broken is named with its line and value."""
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"")
    if lines:
        write(path, *lines)
    with pytest.raises(DataError, match=message) as caught:
        load_split(path, "train", 2)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("train.jsonl: ")


def test_a_file_cut_in_the_middle_of_a_record(tmp_path):
    """A download that broke off is reported by its last line, not read short."""
    path = write(tmp_path / "train.jsonl", GOOD, GOOD)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"line 2 of 2 is not JSON .* truncated or damaged"):
        load_split(path, "train", 2)


def test_a_missing_file_says_where_it_was_sought(tmp_path):
    """A missing file names its path and the way to point elsewhere."""
    with pytest.raises(DataError, match=r"No such file.*HARNESS_GSM8K_DIR") as caught:
        load_split(tmp_path / "train.jsonl", "train", 1)
    assert str(tmp_path / "train.jsonl") in str(caught.value)
    with pytest.raises(DataError, match="can't be read"):
        data_sha256(tmp_path)


def test_many_broken_lines_are_counted(tmp_path):
    """Five broken lines are shown, and the others are counted."""
    path = write(tmp_path / "train.jsonl", *(["broken"] * 8))
    with pytest.raises(DataError) as caught:
        load_split(path, "train", 8)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "... and 3 more"
