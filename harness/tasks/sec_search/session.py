"""One search session: what an episode has met and curated, and the six things that it can do.

A session belongs to one episode and shares nothing with others but the read-only index. Every
call answers with a JSON object; a call that can't be served answers {"error", "message"} and
changes nothing. Ids and patterns come from a policy: they are data, never paths or SQL.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import JsonValue

from harness.tasks.sec_search.grep import (
    CANDIDATES,
    WORK,
    PatternRefused,
    compiled,
    literal_words,
    matches,
)
from harness.tasks.sec_search.index import Hit, Retriever, words_of

Reply = dict[str, JsonValue]

SHOWN_CHARS = 80  # of what the policy wrote, when it is quoted back to it
MAX_QUERY_CHARS = 1_000
MAX_IDS = 64


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of a session's answers, in characters and counts.

    `default_k` hits answer a search that names no k; `max_k` is the most that can be asked for.
    `work` bounds a grep, in characters times instructions of its pattern.
    """

    default_k: int = 4
    max_k: int = 25
    snippet_chars: int = 220
    read_chars: int = 2_400
    max_curated: int = 30
    work: int = WORK


class SearchSession:
    """State of one episode: what was met and curated, `finished`, and `counts`.

    `encountered` has the titles of the chunks that were met, by id, in the order of first sight.
    `counts` has the number of calls by name, `errors`, and `invalid_curations` (ids that were
    curated without having been met).
    """

    def __init__(self, retriever: Retriever, limits: SessionLimits | None = None) -> None:
        self._retriever = retriever
        self.limits = limits or SessionLimits()
        self.encountered: dict[str, str] = {}
        self.curated: list[str] = []
        self.finished = False
        self.counts: Counter[str] = Counter()

    def search(self, query: str, k: int | None = None) -> Reply:
        """The chunks that match the words of `query` best, by BM25."""
        self.counts["search"] += 1
        asked = self.limits.default_k if k is None else k
        if asked < 1:
            return self._error("bad_k", f"k is {asked}; it is at least 1")
        if len(query) > MAX_QUERY_CHARS:
            return self._error("long_query", f"{len(query)} characters; use {MAX_QUERY_CHARS}")
        words = words_of(query)
        if not words:
            return self._error("empty_query", "the query holds no word; use words of the text")
        hits = list(self._retriever.search(words, min(asked, self.limits.max_k)))
        results = [self._result(hit, snippet_start(hit.chunk.text, words)) for hit in hits]
        return self._found({"query": shown(query)}, results)

    def grep(self, pattern: str, case_sensitive: bool = False, k: int | None = None) -> Reply:
        """The chunks whose title or text match a regular expression, best BM25 match first.

        Only the 5,000 best chunks that hold a literal word of the pattern are looked at.
        """
        self.counts["grep"] += 1
        asked = self.limits.default_k if k is None else k
        if asked < 1:
            return self._error("bad_k", f"k is {asked}; it is at least 1")
        try:
            expression = compiled(pattern, case_sensitive)
            words = literal_words(pattern)
            if not words:
                raise PatternRefused("no literal word of 2 characters; put one into the pattern")
            hits = self._retriever.search(words, CANDIDATES, rows=4 * CANDIDATES)
            texts = ((hit, f"{hit.chunk.title}\n{hit.chunk.text}") for hit in hits)
            found = islice(
                matches(expression, texts, self.limits.work), min(asked, self.limits.max_k)
            )
            results = [self._result(h, start - len(h.chunk.title) - 1) for h, (start, _) in found]
        except PatternRefused as error:
            return self._error("bad_pattern", str(error))
        return self._found({"pattern": shown(pattern)}, results)

    def read(self, document_id: str) -> Reply:
        """The text of a chunk that was met, up to `read_chars` characters."""
        self.counts["read"] += 1
        chunk = self._retriever.get(document_id) if document_id in self.encountered else None
        if chunk is None:
            return self._error(
                "document_not_encountered", f"{shown(document_id)}: search for it first"
            )
        room = self.limits.read_chars
        return {
            "document_id": chunk.id,
            "title": chunk.title,
            "text": chunk.text[:room],
            "truncated": len(chunk.text) > room,
        }

    def curate(self, document_ids: Sequence[str]) -> Reply:
        """Put chunks that were met into the curated set, in order, until it is full."""
        self.counts["curate"] += 1
        if len(document_ids) > MAX_IDS:
            return self._error("many_ids", f"{len(document_ids)} ids; give at most {MAX_IDS}")
        asked = list(dict.fromkeys(document_ids))
        met = [each for each in asked if each in self.encountered]
        new = [each for each in met if each not in self.curated]
        added = new[: self.limits.max_curated - len(self.curated)]
        self.curated += added
        self.counts["invalid_curations"] += len(asked) - len(met)
        return {
            "added": list(added),
            "invalid_document_ids": [shown(i) for i in asked if i not in self.encountered],
            "dropped_over_capacity": list(new[len(added) :]),
            **self._curated_state(),
        }

    def drop(self, document_ids: Sequence[str]) -> Reply:
        """Take chunks out of the curated set."""
        self.counts["drop"] += 1
        if len(document_ids) > MAX_IDS:
            return self._error("many_ids", f"{len(document_ids)} ids; give at most {MAX_IDS}")
        asked = list(dict.fromkeys(document_ids))
        removed = [each for each in asked if each in self.curated]
        not_curated: list[JsonValue] = [shown(each) for each in asked if each not in self.curated]
        self.curated = [each for each in self.curated if each not in removed]
        return {"removed": list(removed), "not_curated": not_curated, **self._curated_state()}

    def finish(self) -> Reply:
        """End the session; the curated set is what is graded."""
        self.counts["finish"] += 1
        self.finished = True
        return {"accepted": True, "curated_count": len(self.curated)}

    def _result(self, hit: Hit, start: int) -> Reply:
        chunk, width = hit.chunk, self.limits.snippet_chars
        start = max(0, min(start, len(chunk.text) - width))
        return {
            "document_id": chunk.id,
            "title": chunk.title,
            "snippet": chunk.text[start : start + width],
            "score": round(hit.score, 4),
        }

    def _found(self, asked: Reply, results: Sequence[JsonValue]) -> Reply:
        for result in results:
            if isinstance(result, dict):
                self.encountered.setdefault(str(result["document_id"]), str(result["title"]))
        return {
            **asked,
            "count": len(results),
            "results": list(results),
            "search_state": {
                "encountered": len(self.encountered),
                "curated": len(self.curated),
                "next_step": "curate what shows a fact, then search on or finish",
            },
        }

    def _curated_state(self) -> Reply:
        return {"curated_count": len(self.curated), "curated_ids": list(self.curated)}

    def _error(self, code: str, message: str) -> Reply:
        self.counts["errors"] += 1
        return {"error": code, "message": message}


def snippet_start(text: str, words: Sequence[str]) -> int:
    """Where the longest of the words that stand in the text first does, less 40 characters.

    The longest stands in for the rarest: the first match of any word is mostly one of no weight.
    """
    folded = text.casefold()
    for word in sorted(words, key=lambda word: (-len(word), word)):
        place = folded.find(word)
        if place >= 0:
            return max(0, place - 40)
    return 0


def shown(text: str) -> str:
    """What the policy wrote, cut to 80 characters, without what can't be encoded."""
    cut = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
    return cut.encode("utf-8", "replace").decode("utf-8")
