import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from harness.embedded import data_sha256, load_splits, write_splits
from harness.embedded.families import FAMILIES, LARGEST, evaluate
from harness.embedded.problems import N_TEST, N_TRAIN, generate
from harness.errors import StoreError

PINNED_SHA256 = "686c73275b5c616ad3b62c60bd63f873f7b0f47c81b876bf2c06652d06637176"
ANNOTATION = re.compile(r"<<(.+?)=(\d+)>>(\d+)")
NUMBER = re.compile(r"\d+")
TRAIN, TEST = load_splits()
RECORDS = [*TRAIN, *TEST]


def _masked(question: str) -> tuple[str, tuple[str, ...]]:
    """The question with numbers masked, and the numbers in the order they are read."""
    return NUMBER.sub("N", question), tuple(NUMBER.findall(question))


def test_counts_are_those_of_gsm8k() -> None:
    """The splits hold 7,473 train and 1,319 test records."""
    assert (len(TRAIN), len(TEST)) == (N_TRAIN, N_TEST) == (7_473, 1_319)


def test_a_record_has_gsm8k_keys_and_ends_in_its_answer() -> None:
    """Each record has a question and an answer whose only `####` line is the last one."""
    for record in RECORDS:
        assert set(record) == {"question", "answer"}
        *reasoning, last = record["answer"].split("\n")
        assert re.fullmatch(r"#### \d+", last)
        assert reasoning
        assert all("####" not in line for line in reasoning)


def test_prompts_and_answers_are_short() -> None:
    """A question has at most 110 characters, an answer at most 95."""
    assert max(len(record["question"]) for record in RECORDS) <= 110
    assert max(len(record["answer"]) for record in RECORDS) <= 95


def test_reasoning_reaches_the_gold_answer() -> None:
    """Each annotation is true, repeats its value, and the last one gives the gold answer."""
    for record in RECORDS:
        lines = ANNOTATION.findall(record["answer"])
        assert 2 <= len(lines) <= 4
        for expression, value, repeated in lines:
            assert evaluate(expression) == int(value) == int(repeated)
            assert 1 <= int(value) <= LARGEST
        assert record["answer"].endswith(f"#### {lines[-1][1]}")


def test_reasoning_uses_every_number_of_the_question() -> None:
    """No number in a question is idle: each appears in some line of reasoning."""
    for record in RECORDS:
        used = set(NUMBER.findall(" ".join(e for e, _, _ in ANNOTATION.findall(record["answer"]))))
        assert set(NUMBER.findall(record["question"])) <= used


def test_no_question_is_on_both_sides_or_twice() -> None:
    """Questions are distinct within a side and across the two."""
    counts = Counter(record["question"] for record in RECORDS)
    assert counts.most_common(1)[0][1] == 1


def test_no_masked_template_with_the_same_numbers_is_on_both_sides() -> None:
    """A test question with numbers masked never meets a train question with the same numbers."""
    seen = {_masked(record["question"]) for record in TRAIN}
    assert not [r["question"] for r in TEST if _masked(r["question"]) in seen]


def test_no_numbers_of_a_family_are_on_both_sides() -> None:
    """Another name or wording does not make a train problem a test problem."""
    splits = generate()
    seen = {(p.family, p.numbers) for p in splits.train}
    assert not [p.question for p in splits.test if (p.family, p.numbers) in seen]


def test_families_have_equal_shares() -> None:
    """Each side holds each family equally often, within one problem."""
    for side in (generate().train, generate().test):
        counts = Counter(problem.family for problem in side)
        assert len(counts) == len(FAMILIES)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_data_is_pinned() -> None:
    """The registered data has this content; changing it changes every pinned result."""
    assert data_sha256() == PINNED_SHA256


def test_another_seed_gives_other_problems() -> None:
    """The seed decides what is drawn, and the same seed draws it again."""
    first = generate(seed=1, n_train=80, n_test=16)
    generate.cache_clear()
    assert generate(seed=1, n_train=80, n_test=16) == first
    assert generate(seed=2, n_train=80, n_test=16) != first


def test_kernel_weights_have_few_contributors() -> None:
    """At tau 0.1 a prompt among 64 borrows from the few of its family: median 3 to 20."""
    questions = [record["question"] for record in TRAIN]
    tfidf = TfidfVectorizer().fit_transform(questions)
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = tfidf[rng.choice(len(questions), 64, replace=False)]
        logits_PP = (rows @ rows.T).toarray() / 0.1
        np.fill_diagonal(logits_PP, -np.inf)
        weights_PP = np.exp(logits_PP - logits_PP.max(axis=1, keepdims=True))
        weights_PP /= weights_PP.sum(axis=1, keepdims=True)
        assert 3 <= np.median(1 / (weights_PP**2).sum(axis=1)) <= 20


def test_written_files_hold_the_records(tmp_path: Path) -> None:
    """write_splits makes a folder with the records as JSON lines, and leaves no other file."""
    paths = write_splits(tmp_path / "data")
    for path, records in zip(paths, load_splits(), strict=True):
        assert [json.loads(line) for line in path.read_text().splitlines()] == records
    content = b"".join(path.read_bytes() for path in paths)
    assert hashlib.sha256(content).hexdigest() == data_sha256()
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["test.jsonl", "train.jsonl"]


def test_writing_again_touches_nothing_and_mends_a_truncated_file(tmp_path: Path) -> None:
    """A right file keeps its inode; a truncated one is replaced."""
    train, test = write_splits(tmp_path)
    whole, inode = train.read_bytes(), test.stat().st_ino
    train.write_bytes(whole[:1000])
    write_splits(tmp_path)
    assert train.read_bytes() == whole
    assert test.stat().st_ino == inode


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    """A file in the way raises StoreError that names the path."""
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match=r"can't write .*data.*another folder"):
        write_splits(tmp_path / "data")


def test_the_package_imports_without_torch() -> None:
    """Importing the room and generating its data loads neither torch nor transformers."""
    code = (
        "import sys; from harness.embedded import load_splits; load_splits();"
        "assert not {'torch', 'transformers', 'tinker'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
