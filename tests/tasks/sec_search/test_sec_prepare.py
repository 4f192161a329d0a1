"""Preparation: the published schema, the corpus selection, the manifest, and refusals."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sec_support import TINY_SELECTION, facts_on, question_row, write_published

from harness.errors import DataError
from harness.tasks.sec_search import (
    SearchSession,
    Selection,
    World,
    load_search_task,
    prepare,
    published_task,
    synthetic_task,
)
from harness.tasks.sec_search.prepare import INDEX, MANIFEST
from harness.tasks.sec_search.records import read_queries, split_chunk_id, split_heading
from harness.tasks.sec_search.synthetic import TINY, write_raw

HEAD = "Company: Acme Corp\nFiling Date: 2021-03-04\nForm: 10-K\nItem: 1A\nChunk 3\n---\n"
ONE = Selection(n_train=1, n_test=1, background=2, radius=1)


def shard(accession: str, n: int) -> list[tuple[str, str]]:
    """One filing of n chunks."""
    return [(f"{accession}_{i}", f"{HEAD}{accession} word{i}") for i in range(n)]


QUESTIONS = [
    question_row("1_0", "First clue. What is it?", facts_on(["a_1", "a_9"], ["b_2"])),
    question_row("2_0", "Second clue. What is it?", facts_on(["c_5"])),
]
SHARDS = [shard("a", 12), [*shard("b", 12), *shard("c", 12)]]


def test_a_published_folder_becomes_a_task(tmp_path):
    """Questions, gold chunks with their neighbours, and the asked background arrive."""
    raw = write_published(tmp_path / "raw", QUESTIONS, SHARDS)
    task = published_task(raw, tmp_path / "prepared", ONE)
    assert task.source.kind == "published"
    assert str(raw) in task.source.sentence
    assert {q.text for q in (*task.train, *task.test)} == {row["query"] for row in QUESTIONS}
    near = {"a_0", "a_1", "a_2", "a_8", "a_9", "a_10", "b_1", "b_2", "b_3", "c_4", "c_5", "c_6"}
    assert all(task.retriever.get(chunk) is not None for chunk in near)
    assert task.retriever.size == len(near) + 2


def test_the_heading_becomes_the_title(tmp_path):
    """Company, form and date are the title; the text is what stands below the rule."""
    raw = write_published(tmp_path / "raw", QUESTIONS, SHARDS)
    chunk = published_task(raw, tmp_path / "prepared", ONE).retriever.get("a_1")
    assert chunk is not None
    assert (chunk.title, chunk.text) == ("Acme Corp · 10-K · 2021-03-04", "a word1")
    assert split_heading("x-1_2", "no heading at all") == ("x-1", "no heading at all")


@pytest.mark.parametrize(
    ("chunk_id", "parts"),
    [
        ("0001736297-25-000064_3", ("0001736297-25-000064", 3)),
        ("under_score_12", ("under_score", 12)),
        ("nothing", ("nothing", None)),
        ("_5", ("_5", None)),
        ("a_²", ("a_²", None)),
    ],
)
def test_a_chunk_id_ends_in_its_place(chunk_id, parts):
    """The last underscore parts accession and index; other ids have no place."""
    assert split_chunk_id(chunk_id) == parts


def test_unusable_records_are_left_out_and_counted(tmp_path):
    """Rows of other stages pass by; rows that can't be scored are counted under a reason."""
    rows = [
        *QUESTIONS,
        question_row("3_0", "sft row", facts_on(["a_1"]), stage="sft"),
        question_row("4_0", "other data", facts_on(["a_1"]), dataset_name="web"),
        question_row("5_0", "no facts", []),
        question_row("6_0", "no chunks", facts_on([])),
        question_row("7_0", "not a list", {"fact": 1}),
        question_row("8_0", "broken", [], document_ids_json="[{"),
        question_row("9_0", " ", facts_on(["a_1"])),
        question_row("10_0", "absent gold", facts_on(["zz_1"])),
    ]
    raw = write_published(tmp_path / "raw", rows, SHARDS)
    queries, left_out = read_queries(raw)
    assert [q.id for q in queries] == ["1_0", "2_0", "10_0"]
    assert left_out == {"no facts": 2, "a fact without chunks": 1, "malformed": 2}
    counts = published_task(raw, tmp_path / "prepared", ONE).counts
    assert counts["left_out"] == {**left_out, "gold chunk not in the corpus": 1}


def test_the_order_of_shards_does_not_matter(tmp_path):
    """The same chunks in other shards and orders give the same corpus and the same ranking."""
    tasks = [
        published_task(
            write_published(tmp_path / f"raw{n}", QUESTIONS, shards), tmp_path / f"prepared{n}", ONE
        )
        for n, shards in enumerate([SHARDS, [SHARDS[1][::-1], SHARDS[0][::-1]]])
    ]
    assert tasks[0].sha256s == tasks[1].sha256s
    replies = [SearchSession(task.retriever).search("word1 word2 word9", 25) for task in tasks]
    assert replies[0] == replies[1]


def test_the_same_preparation_is_kept_and_another_one_refused(tmp_path):
    """A prepared folder serves the bytes and the selection that made it, and no others."""
    raw = write_published(tmp_path / "raw", QUESTIONS, SHARDS)
    prepared = prepare(raw, tmp_path / "prepared", ONE)
    before = (prepared / INDEX).stat().st_mtime_ns
    assert (prepare(raw, prepared, ONE) / INDEX).stat().st_mtime_ns == before
    with pytest.raises(DataError, match="other data or with another selection"):
        prepare(raw, prepared, Selection(n_train=1, n_test=1))
    (prepared / MANIFEST).unlink()
    with pytest.raises(DataError, match="has no readable dataset"):
        prepare(raw, prepared, ONE)


def test_a_failed_preparation_leaves_nothing(tmp_path):
    """Too few questions: an error with both numbers, and no half-written folder."""
    raw = write_published(tmp_path / "raw", QUESTIONS, SHARDS)
    with pytest.raises(DataError, match="1 train questions can be chosen from 2, 5 are needed"):
        prepare(raw, tmp_path / "prepared", Selection(n_train=5, n_test=1))
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_chunk_that_comes_twice_is_refused(tmp_path):
    """Ids are unique in a corpus: of two texts under one id neither can be trusted."""
    raw = write_published(tmp_path / "raw", QUESTIONS, [*SHARDS, shard("a", 2)])
    with pytest.raises(DataError, match="came twice"):
        prepare(raw, tmp_path / "prepared", ONE)


@pytest.mark.parametrize("missing", ["data", "corpora"])
def test_a_missing_part_is_named(tmp_path, missing):
    """Without questions or without chunks the schema's place for them is in the message."""
    raw = write_published(tmp_path / "raw", QUESTIONS, SHARDS)
    (raw / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"no file matches {missing}"):
        prepare(raw, tmp_path / "prepared", ONE)


def test_a_missing_column_and_a_damaged_file_are_named(tmp_path):
    """A table of another schema, or cut off, is an error that names the file."""
    raw = write_published(tmp_path / "raw", QUESTIONS, SHARDS)
    table = raw / "data/train-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist([{"stage": "rl", "query": "?"}]), table)
    with pytest.raises(DataError, match="no column answer, dataset_name, document_ids_json"):
        prepare(raw, tmp_path / "prepared", ONE)
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(DataError, match="damaged"):
        prepare(raw, tmp_path / "prepared", ONE)


def test_there_is_no_silent_fallback(tmp_path, monkeypatch):
    """Asked for published data, neither a missing folder nor a synthetic one will do."""
    monkeypatch.delenv("HARNESS_SEC_DIR", raising=False)
    with pytest.raises(DataError, match="HARNESS_SEC_DIR"):
        published_task(None, tmp_path / "prepared", ONE)
    monkeypatch.setenv("HARNESS_SEC_DIR", str(write_raw(TINY, tmp_path / "raw")))
    with pytest.raises(DataError, match="ask for synthetic data by name"):
        published_task(None, tmp_path / "prepared", TINY_SELECTION)


def test_the_folder_of_the_environment_is_used(tmp_path, monkeypatch):
    """HARNESS_SEC_DIR points at the raw folder."""
    raw = write_published(tmp_path / "raw", QUESTIONS, SHARDS)
    monkeypatch.setenv("HARNESS_SEC_DIR", str(raw))
    assert published_task(None, tmp_path / "prepared", ONE).source.detail["path"] == str(raw)


def test_the_synthetic_source_is_named(task):
    """The seed and the settings of a synthetic corpus are in the task that it becomes."""
    assert task.source.kind == "synthetic"
    assert task.source.detail["seed"] == TINY.seed
    assert "synthetic (" in task.source.sentence


def test_a_changed_file_is_noticed(tmp_path):
    """A prepared folder whose questions are not those of the manifest does not load."""
    synthetic_task(TINY, tmp_path / "tiny", TINY_SELECTION)
    test = tmp_path / "tiny" / "test.jsonl"
    test.write_bytes(b"\n".join(test.read_bytes().splitlines()[:-1]))
    with pytest.raises(DataError, match="not what was prepared"):
        load_search_task(tmp_path / "tiny")


def test_no_gold_chunk_is_missing_and_nothing_leaks(task):
    """Every gold id of both splits is in the corpus, and the manifest's guards are 0."""
    for query in (*task.train, *task.test):
        assert all(task.retriever.get(chunk) is not None for chunk in query.gold)
    manifest = json.loads((task.retriever.path.parent / MANIFEST).read_text())
    assert set(manifest["leakage"].values()) == {0}


def test_worlds_too_small_to_state_their_facts_are_refused():
    """Fewer than 4 companies or 60 chunks each can't hold three statements of each fact."""
    for settings in ({"companies": 3}, {"companies": 9, "chunks_per_company": 59}):
        with pytest.raises(DataError, match="at least 4"):
            World(seed=1, **settings)
