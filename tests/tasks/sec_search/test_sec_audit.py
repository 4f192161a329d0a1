"""Labels of the search task: every cited chunk can be found."""

import dataclasses

from harness.tasks.sec_search import Fact
from harness.tasks.sec_search.audit import gold_audit


def test_a_sound_corpus_holds_every_cited_chunk(task):
    """All questions of both splits are looked up."""
    found = gold_audit(task)

    assert (found.n_checked, found.errors, found.notes) == (32, (), ())
    assert found.annotations >= 3 * 32


def test_a_chunk_that_the_corpus_lacks_is_an_error_of_its_question(task):
    """No search can find it, so the question can't be answered as labelled."""
    lost = dataclasses.replace(
        task.test[0], facts=(Fact("gone", ("0000000000-25-000001_9",), True),)
    )
    found = gold_audit(dataclasses.replace(task, test=(lost, *task.test[1:])))

    assert [(e.id, e.reason) for e in found.errors] == [
        (lost.id, "cites 0000000000-25-000001_9, which the corpus lacks")
    ]


def test_a_chunk_that_shows_two_facts_is_a_note(task):
    """It makes the question easier, not wrong."""
    query = task.train[0]
    doubled = dataclasses.replace(query, facts=(*query.facts, query.facts[0]))
    found = gold_audit(dataclasses.replace(task, train=(doubled, *task.train[1:])))

    assert found.errors == ()
    assert {note.id for note in found.notes} == {query.id}
