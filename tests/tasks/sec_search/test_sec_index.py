"""The index: BM25 in a stable order, whatever the words are."""

import pickle
import sqlite3
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DataError
from harness.tasks.sec_search.index import Retriever, build_index, stem, words_of
from harness.tasks.sec_search.records import Chunk


def index_of(path, texts: dict[str, str], title: str = "t") -> Retriever:
    """An index of these texts, rows in the order of the ids."""
    rowids = {doc_id: row for row, doc_id in enumerate(sorted(texts), start=1)}
    build_index(path, [Chunk(i, title, text) for i, text in texts.items()], rowids)
    return Retriever(path)


def ids(hits) -> list[str]:
    """The ids of hits, best first."""
    return [hit.chunk.id for hit in hits]


def test_equal_scores_stand_in_the_order_of_their_rows(tmp_path):
    """Ties are broken by the row, and so by the id, not by the order of arrival."""
    retriever = index_of(tmp_path / "i", dict.fromkeys("dbeca", "alpha beta") | {"f": "gamma"})
    assert ids(retriever.search(["alpha"], 5)) == list("abcde")
    assert ids(retriever.search(["alpha"], 2)) == ["a", "b"]


def test_the_score_is_the_index_own_bm25(tmp_path):
    """Scores equal the BM25 formula with k1 1.2, b 0.75 and FTS5's IDF, on one column."""
    import math

    texts = {"a": "bond yield", "b": "bond bond bond market rally", "c": "other", "d": "more text"}
    retriever = index_of(tmp_path / "i", texts, title="")
    lengths = {doc: len(text.split()) for doc, text in texts.items()}
    mean = sum(lengths.values()) / len(texts)
    idf = max(math.log((4 - 2 + 0.5) / (2 + 0.5)), 1e-6)
    for hit in retriever.search(["bond"], 9):
        tf = texts[hit.chunk.id].split().count("bond")
        length = lengths[hit.chunk.id]
        expected = idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / mean))
        assert hit.score == pytest.approx(expected)


def test_a_word_of_the_title_counts_twice(tmp_path):
    """Among texts of one length the chunk that is titled with the word comes first."""
    rowids = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
    titles = {"b": "acme", "a": "none", "c": "none", "d": "none", "e": "none"}
    texts = {"b": "plain word", "a": "acme word", "c": "x y", "d": "x y", "e": "x y"}
    build_index(tmp_path / "i", [Chunk(i, titles[i], texts[i]) for i in rowids], rowids)
    assert ids(Retriever(tmp_path / "i").search(["acme"], 2)) == ["b", "a"]


def test_words_match_by_stem_case_and_accent(tmp_path):
    """Porter stems, folded case and stripped accents meet."""
    retriever = index_of(tmp_path / "i", {"a": "Générale leasing", "b": "none", "c": "none"})
    for query in ("GENERALE", "générale", "leased", "Leases"):
        assert ids(retriever.search(words_of(query), 1)) == ["a"]


def test_of_many_words_the_rarest_are_searched_for(tmp_path):
    """Within a budget of rows rare words stay and common ones go; two words stay in any case."""
    rare = {7: " rare", 8: " seldom", 9: " seldom"}
    texts = {f"{n:02d}": f"common{rare.get(n, '')}" for n in range(20)}
    retriever = index_of(tmp_path / "i", texts)
    words = ["common", "rare", "unknown", "seldom"]
    assert retriever.rarest(words, 1_000) == ["rare", "seldom", "common"]
    assert retriever.rarest(words, 20) == ["rare", "seldom"]
    assert retriever.rarest(["common", "rare"], 5) == ["rare", "common"]
    assert retriever.rarest(["unknown"], 5) == []
    assert ids(retriever.search(words, 9, rows=20)) == ["07", "08", "09"]
    assert len(ids(retriever.search(words, 99))) == 20


def test_document_counts_are_of_stems(tmp_path):
    """Forms of one stem are counted together."""
    retriever = index_of(tmp_path / "i", {"a": "lease", "b": "leases leasing", "c": "x"})
    assert retriever.document_count("leased") == 2
    assert stem("leases") == stem("leasing") == "leas"


HOSTILE = st.text(st.characters(codec=None), max_size=60) | st.sampled_from(
    [
        '" OR 1=1 --',
        "documents_fts:x",
        'NEAR("a" "b", 2)',
        "'; DROP TABLE documents; --",
        "text : *",
        "^a + b AND NOT (c",
        "\x00\ud800\U0010ffff",
        "a" * 10_000,
        "../../etc/passwd",
        "%s {0} $1 \\",
    ]
)


@pytest.fixture(scope="module")
def hostile_index(tmp_path_factory):
    """One index for all examples of a property test."""
    texts = {"x": "alpha near and or not", "y": "documents drop table", "z": "etc passwd"}
    return index_of(tmp_path_factory.mktemp("hostile") / "i", texts)


def test_no_query_and_no_id_breaks_the_index(hostile_index):
    """Any text is answered, with hits or with none, and nothing is written."""

    @given(HOSTILE)
    def check(hostile: str) -> None:
        assert all(hit.chunk.id for hit in hostile_index.search(words_of(hostile), 3))
        assert hostile_index.get(hostile) is None

    before = hostile_index.path.read_bytes()
    check()
    assert hostile_index.path.read_bytes() == before


def test_nothing_can_be_written(hostile_index):
    """The index is open for reading only."""
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        hostile_index._connection().execute("DELETE FROM documents")


def test_threads_share_one_index(task):
    """Eight threads at once get what one gets alone."""
    queries = [words_of(query.text) for query in task.train]
    alone = [ids(task.retriever.search(words, 10)) for words in queries]
    together: dict[int, list[list[str]]] = {}

    def work(number: int) -> None:
        together[number] = [ids(task.retriever.search(words, 10)) for words in queries]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(together.values()) == [alone] * 8


def test_a_copy_reads_the_same_file(task):
    """A retriever travels between processes as its path."""
    copy = pickle.loads(pickle.dumps(task.retriever))
    words = words_of(task.train[0].text)
    assert ids(copy.search(words, 5)) == ids(task.retriever.search(words, 5))
    copy.close()


@pytest.mark.parametrize("content", [None, b"not a database", b""])
def test_what_is_no_index_is_refused(tmp_path, content):
    """A missing, foreign or empty file is an error in one line."""
    path = tmp_path / "i"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="prepare the folder again"):
        Retriever(path)


def test_chunks_that_do_not_come_are_missed(tmp_path):
    """An index of fewer chunks than its rows say is not written."""
    with pytest.raises(DataError, match="1 of 2 chunks came"):
        build_index(tmp_path / "i", [Chunk("a", "", "x")], {"a": 1, "b": 2})
