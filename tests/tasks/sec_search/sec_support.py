"""Hand-written corpora in the published schema, and the tiny synthetic one's selection."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from harness.tasks.sec_search import Selection

TINY_SELECTION = Selection(n_train=24, n_test=8, background=None)


def question_row(query_id: str, query: str, facts: object, **other: str) -> dict[str, str]:
    """A row of the published question table; `facts` is put down as it is, in JSON."""
    return {
        "stage": "rl",
        "dataset_name": "sec",
        "query_id": query_id,
        "query": query,
        "answer": "42",
        "document_ids_json": json.dumps(facts),
        **other,
    }


def facts_on(*chunk_ids: Sequence[str]) -> list[dict[str, object]]:
    """One fact for each group of chunks; the last is the final answer."""
    return [
        {"fact": f"fact {n}", "chunk_ids": list(ids), "is_final_answer": n == len(chunk_ids)}
        for n, ids in enumerate(chunk_ids, start=1)
    ]


def write_published(
    raw: Path, questions: list[dict[str, str]], shards: Sequence[Sequence[tuple[str, str]]]
) -> Path:
    """A raw folder in the published schema: a question table and shards of (id, text) chunks."""
    corpus = raw / "corpora" / "sec" / "train"
    (raw / "data").mkdir(parents=True)
    corpus.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(questions), raw / "data/train-00000-of-00001.parquet")
    for number, shard in enumerate(shards):
        rows = [{"chunk_id": i, "document_text": t, "metadata_json": "{}"} for i, t in shard]
        pq.write_table(pa.Table.from_pylist(rows), corpus / f"train-{number:05d}.parquet")
    return raw
