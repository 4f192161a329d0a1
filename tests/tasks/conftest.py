"""Records for tests of tasks: GSM8K itself where HARNESS_GSM8K_DIR points at it, else generated."""

import json
import os
from pathlib import Path

import pytest

# small enough to be quick, large enough for a label audit of 100
N_TRAIN, N_TEST = 150, 40


def generated(index: int, offset: int) -> dict[str, str]:
    """One word problem in the record format; questions of two offsets never coincide."""
    price, count = index + 2, index % 7 + offset
    total = price * count
    question = (
        f"In shop {offset}-{index} Ann buys {count} boxes of pens, and each of the boxes on the "
        f"shelf costs {price} dollars. How many dollars does she pay for all of them?"
    )
    answer = f"She pays {price}*{count}=<<{price}*{count}={total}>>{total:,} dollars."
    return {"question": question, "answer": f"{answer}\n#### {total:,}"}


def write_records(path: Path, records: list[dict[str, str]]) -> Path:
    """Write records as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """A folder with train.jsonl and test.jsonl, and how many records each holds."""
    real = os.environ.get("HARNESS_GSM8K_DIR")
    if real:
        return Path(real), 7473, 1319
    folder = tmp_path_factory.mktemp("gsm8k")
    write_records(folder / "train.jsonl", [generated(i, 11) for i in range(N_TRAIN)])
    write_records(folder / "test.jsonl", [generated(i, 23) for i in range(N_TEST)])
    return folder, N_TRAIN, N_TEST
