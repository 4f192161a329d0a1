import dataclasses
import hashlib
import json

import pytest
from service_doubles import CARD

from harness.cards import load_experiment
from harness.errors import DataError
from harness.protocol.data import experiment_task, refuse_too_few_prompts, train_task


@pytest.fixture(scope="module")
def full():
    """The card as registered: 7,473 train and 1,319 test records of GSM8K."""
    return load_experiment(CARD, "full")


def counted(experiment, train, test, **hashes):
    """The experiment with other numbers of records and other hashes of its files."""
    card = experiment.card.model_copy(
        update={
            "dataset": experiment.card.dataset.model_copy(update={"n_examples": train}),
            "eval": experiment.card.eval.model_copy(update={"n_examples": test}),
        }
    )
    pinned = experiment.registration.data.model_copy(update=hashes)
    registration = experiment.registration.model_copy(update={"data": pinned})
    return dataclasses.replace(experiment, card=card, registration=registration)


@pytest.fixture
def files(tmp_path):
    """A folder with three train and two test records, and their hashes."""
    hashes = {}
    for split, count in (("train", 3), ("test", 2)):
        records = [{"question": f"{split} {i}?", "answer": f"#### {i}"} for i in range(count)]
        data = "".join(json.dumps(record) + "\n" for record in records).encode()
        (tmp_path / f"{split}.jsonl").write_bytes(data)
        hashes[f"{split}_sha256"] = hashlib.sha256(data).hexdigest()
    return tmp_path, hashes


def test_the_registered_files_are_taken(full, files, tmp_path):
    """Counts and hashes fit: the splits come back in file order."""
    folder, hashes = files

    task = experiment_task(counted(full, 3, 2, **hashes), tmp_path, folder)

    assert [problem.id for problem in task.train] == ["train/00000", "train/00001", "train/00002"]
    assert [problem.gold for problem in task.test] == ["0", "1"]


def test_the_train_split_alone_needs_no_test_split(full, files, tmp_path):
    """Before a tuning stage has chosen not a byte of the test split is read: it may be missing."""
    folder, hashes = files
    (folder / "test.jsonl").unlink()
    experiment = counted(full, 3, 2, **hashes)

    task = train_task(experiment, tmp_path, folder)

    assert [problem.id for problem in task.train] == ["train/00000", "train/00001", "train/00002"]
    assert task.test == ()
    with pytest.raises(DataError, match=r"test\.jsonl"):
        experiment_task(experiment, tmp_path, folder)
    (folder / "train.jsonl").write_bytes(
        (folder / "train.jsonl").read_bytes().replace(b"train 0?", b"train 9?")
    )
    with pytest.raises(DataError, match="is not the registered"):
        train_task(experiment, tmp_path, folder)


def test_without_a_folder_the_option_is_named(full, tmp_path):
    """The scale, the option and the variable are in the message."""
    with pytest.raises(DataError, match=r"scale full needs .* --gsm8k-dir or HARNESS_GSM8K_DIR"):
        experiment_task(full, tmp_path, None)


def test_a_folder_that_is_not_there_is_a_data_error(full, tmp_path):
    """A missing file is named."""
    with pytest.raises(DataError, match=r"train\.jsonl"):
        experiment_task(full, tmp_path, tmp_path / "nowhere")


def test_a_truncated_file_is_a_data_error(full, files, tmp_path):
    """Fewer records than the card says are no smaller experiment."""
    folder, hashes = files

    with pytest.raises(DataError, match=r"train\.jsonl"):
        experiment_task(counted(full, 4, 2, **hashes), tmp_path, folder)


def test_files_that_are_not_the_registered_ones_are_named_together(full, files, tmp_path):
    """Both hashes are compared before anything is said."""
    folder, _ = files
    wrong = {"train_sha256": "a" * 64, "test_sha256": "b" * 64}

    with pytest.raises(DataError) as caught:
        experiment_task(counted(full, 3, 2, **wrong), tmp_path, folder)

    train, test = str(caught.value).splitlines()
    assert "train.jsonl: sha256" in train
    assert "is not the registered aaaaaaaaaaaa" in train
    assert "test.jsonl: sha256" in test


def test_embedded_data_is_written_once(tmp_path, monkeypatch):
    """Files that are right are left alone, byte for byte and with their times."""
    experiment = load_experiment(CARD, "embedded")
    pinned = {}

    def task():
        return experiment_task(counted(experiment, 20, 10, **pinned), tmp_path, None)

    records = {
        "train.jsonl": b'{"question": "a?", "answer": "#### 1"}\n' * 20,
        "test.jsonl": b'{"question": "b?", "answer": "#### 2"}\n' * 10,
    }
    for name, data in records.items():
        pinned[name.replace(".jsonl", "_sha256")] = hashlib.sha256(data).hexdigest()
    # the real generator takes a second; what is asked here is who writes, and when
    monkeypatch.setattr("harness.embedded.problems._files", lambda: records)

    first = task()
    stamps = {path.name: path.stat() for path in (tmp_path / "data").iterdir()}
    second = task()

    assert first == second
    assert len(first.train) == 20
    for path in (tmp_path / "data").iterdir():
        assert path.stat().st_ino == stamps[path.name].st_ino
        assert path.stat().st_mtime_ns == stamps[path.name].st_mtime_ns


def test_reused_prompts_need_to_be_enough_for_one_step(words, small):
    """Without reuse 5 steps of 8 prompts need 40; with it, 8."""
    few = dataclasses.replace(words, train=words.train[:8])
    training = small.registration.training.model_copy(update={"reuse_prompts": True})
    registration = small.registration.model_copy(update={"training": training})

    with pytest.raises(DataError, match="need 40"):
        refuse_too_few_prompts(small, few)
    refuse_too_few_prompts(dataclasses.replace(small, registration=registration), few)
