"""The synthetic corpus: one seed, one corpus; questions hard, not hopeless."""

import re
import statistics

import pytest
from sec_support import TINY_SELECTION

from harness.errors import DataError
from harness.tasks.sec_search import SearchSession, World, score, synthetic_task
from harness.tasks.sec_search.records import raw_sha256, read_chunks, read_queries
from harness.tasks.sec_search.synthetic import TINY, write_raw


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """The tiny world's raw folder."""
    return write_raw(TINY, tmp_path_factory.mktemp("raw") / "tiny")


def test_bytes_follow_from_the_seed(raw, tmp_path):
    """The same world gives the same bytes again, another seed others."""
    assert raw_sha256(write_raw(TINY, tmp_path / "again")) == raw_sha256(raw)
    other = write_raw(World(seed=8, companies=12), tmp_path / "other")
    assert raw_sha256(other) != raw_sha256(raw)


def test_a_folder_of_another_world_is_refused(raw):
    """A raw folder is reused for the world that made it only."""
    assert write_raw(TINY, raw) == raw
    with pytest.raises(DataError, match="holds another corpus"):
        write_raw(World(seed=8, companies=12), raw)


def test_sizes_and_ids(raw):
    """60 chunks a company with unique ids and headings; 7 variants of its 4 families."""
    chunks = list(read_chunks(raw))
    assert len({chunk.id for chunk in chunks}) == len(chunks) == 720
    assert all(re.fullmatch(r"\w+ \w+ · [\w -]+ · \d{4}-\d\d-\d\d", c.title) for c in chunks)
    queries, left_out = read_queries(raw)
    assert (len(queries), left_out) == (12 * 7, {})
    assert {len(query.facts) for query in queries} == {3, 5, 7}


def test_every_fact_stands_in_its_chunks_and_only_one_is_asked_for(raw):
    """A gold chunk holds the fact's topic and value; the last fact is the final answer."""
    texts = {chunk.id: chunk.text for chunk in read_chunks(raw)}
    for query in read_queries(raw)[0]:
        assert [fact.is_final_answer for fact in query.facts] == [False] * (
            len(query.facts) - 1
        ) + [True]
        for fact in query.facts:
            _, topic, value = (
                re.split(r": | has a ", fact.text)[0],
                *re.split(r" is | with ", re.split(r": | has a ", fact.text)[1], maxsplit=1),
            )
            for chunk in fact.chunk_ids:
                assert topic in texts[chunk]
                assert value in texts[chunk]


def test_no_chunk_states_two_facts_and_families_share_none(raw):
    """Gold chunks of a question's facts are disjoint, and so are those of two families."""
    owner: dict[str, str] = {}
    for query in read_queries(raw)[0]:
        chunks = [chunk for fact in query.facts for chunk in fact.chunk_ids]
        assert len(set(chunks)) == len(chunks)
        assert all(1 <= len(fact.chunk_ids) <= 3 for fact in query.facts)
        assert all(owner.setdefault(chunk, query.family) == query.family for chunk in chunks)


def test_no_question_names_a_company(raw):
    """Clues are about unnamed companies."""
    names = set(TINY.names)
    assert not any(name in query.text for query in read_queries(raw)[0] for name in names)


def test_longer_variants_extend_the_shorter(raw):
    """A variant's gold chunks are among those of the next longer one, as published."""
    queries = {query.id: query for query in read_queries(raw)[0]}
    for query_id, query in queries.items():
        longer = queries.get(f"{query.family}_{int(query_id[-1]) + 1}")
        assert longer is None or query.gold < longer.gold


def test_questions_are_hard_but_not_hopeless(tmp_path):
    """Searching with the whole question finds between a fifth and a half of the facts."""
    world = World(seed=7, companies=84)
    task = synthetic_task(world, tmp_path / "small", TINY_SELECTION)
    recalls = []
    for query in (*task.test, *task.train):
        session = SearchSession(task.retriever)
        session.search(query.text, 10)
        recalls.append(score(session.encountered, query.facts).recall)
    assert 0.2 <= statistics.fmean(recalls) <= 0.5
