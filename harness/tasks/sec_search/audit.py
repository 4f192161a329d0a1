"""What a question's labels are worth: every chunk that a fact cites is in the corpus, once."""

from collections import Counter

from harness.tasks.audit import Finding, LabelAudit
from harness.tasks.sec_search.records import Query
from harness.tasks.sec_search.task import SearchTask


def gold_audit(task: SearchTask) -> LabelAudit:
    """Look up the gold chunks of all questions of both splits.

    A label is a question's set of facts. A cited chunk that the corpus lacks is an error, since no
    search finds it; a chunk that shows two facts of its question is a note. `annotations` counts
    the citations.
    """
    queries = [*task.train, *task.test]
    cited = {chunk for query in queries for chunk in query.gold}
    lacking = {chunk for chunk in cited if task.retriever.get(chunk) is None}
    return LabelAudit(
        n_checked=len(queries),
        annotations=sum(len(fact.chunk_ids) for query in queries for fact in query.facts),
        errors=tuple(
            Finding(query.id, f"cites {chunk}, which the corpus lacks")
            for query in queries
            for chunk in sorted(query.gold & lacking)
        ),
        notes=tuple(
            Finding(query.id, f"{chunk} shows two facts")
            for query in queries
            for chunk in _shared(query)
        ),
    )


def _shared(query: Query) -> list[str]:
    counts = Counter(chunk for fact in query.facts for chunk in fact.chunk_ids)
    return sorted(chunk for chunk, count in counts.items() if count > 1)
