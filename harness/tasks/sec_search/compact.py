"""A compact syntax for the session's tools, which a model of under a million weights can learn.

The question comes as numbered slots, one a sentence, each with its rarest words:

    1 bulwark mutual insurer 2 tacoma plant site 3 headcount employee

A reply is one call, a verb and symbols. Digits name slots, letters name chunks in the order in
which they were met, so every symbol is one token whatever the vocabulary:

    s12    search for the words of slots 1 and 2        s3a    ... with the company of chunk a
    g1     grep for the first two words of a slot, in order
    ra     read chunk a       cab    curate a and b     da     drop a       f     finish

An answer to s, g or r lists chunks: the chunk's letter, the letter of the first chunk of the same
company, and the slots of which two words stand in what was shown (`aa1bb12cb` has chunks a, b, c;
c is of b's company). The rest of the answers are the curated count after `=`, or `?` for an error.
What tells a right chunk from a wrong one is thus in sight: which clues it matches, and whether its
company matches others.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from harness.tasks.sec_search.index import MAX_QUERY_WORDS, Retriever, words_of
from harness.tasks.sec_search.session import Reply, SearchSession

VERBS = "sgrcdf"
CHUNK_LETTERS = string.ascii_lowercase + string.ascii_uppercase
MAX_SLOTS = 9
SLOT_WORDS = 3
SLOT_MATCH = 2

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")
_ERROR, _NOTHING = "?", "-"


@dataclass(frozen=True)
class CompactCall:
    """One call: slots as numbers from 1, chunks as letters, each without repeats."""

    verb: str
    slots: tuple[int, ...]
    letters: str


def parse_call(text: str) -> CompactCall | str:
    """The call that a reply writes, or why it is none. Spaces are passed over."""
    symbols = "".join(text.split())
    verb, rest = symbols[:1], symbols[1:]
    slots = tuple(dict.fromkeys(int(each) for each in rest if each in string.digits[1:]))
    letters = "".join(dict.fromkeys(each for each in rest if each in CHUNK_LETTERS))
    if not verb or verb not in VERBS:
        return f"a call starts with one of {VERBS}"
    if any(each not in string.digits[1:] and each not in CHUNK_LETTERS for each in rest):
        return "a call holds digits 1 to 9 and letters only"
    fits = {
        "s": len(letters) <= 1 and bool(slots or letters),
        "g": len(slots) == 1 and not letters,
        "r": len(letters) == 1 and not slots,
        "c": bool(letters) and not slots,
        "d": bool(letters) and not slots,
        "f": not rest,
    }[verb]
    return CompactCall(verb, slots, letters) if fits else f"{verb} does not take these symbols"


def question_slots(text: str, retriever: Retriever) -> tuple[tuple[str, ...], ...]:
    """The rarest words of each sentence, up to 3, rarest first.

    Words that the corpus does not hold, or that more than an eighth of it holds, tell nothing; a
    sentence of such words has an empty slot.
    """

    def telling(sentence: str) -> list[str]:
        words = words_of(sentence)
        return [word for word in words if 0 < 8 * retriever.document_count(word) <= retriever.size]

    sentences = _SENTENCE_END.split(text)[:MAX_SLOTS]
    everything = retriever.size * MAX_QUERY_WORDS
    return tuple(
        tuple(retriever.rarest(telling(sentence), everything)[:SLOT_WORDS])
        for sentence in sentences
    )


class CompactDesk:
    """Speaks the compact syntax for one session."""

    def __init__(self, session: SearchSession, retriever: Retriever, question: str) -> None:
        self.session = session
        self.slots = question_slots(question, retriever)

    @property
    def prompt(self) -> str:
        """The question as numbered slots."""
        return " ".join(
            " ".join((str(number), *words)) for number, words in enumerate(self.slots, start=1)
        )

    def run(self, call: CompactCall) -> str:
        """Serve a call, and the answer in compact form."""
        ids = self._ids(call.letters)
        if len(ids) < len(call.letters) or any(slot > len(self.slots) for slot in call.slots):
            self.session.counts[_NAMES[call.verb]] += 1
            self.session.counts["errors"] += 1
            return _ERROR
        match call.verb:
            case "s":
                return self._shown(self.session.search(self._query(call.slots, ids)))
            case "g":
                words = self.slots[call.slots[0] - 1][:SLOT_MATCH]
                return self._shown(self.session.grep(".*".join(map(re.escape, words))))
            case "r":
                return self._shown_text(self.session.read(ids[0]))
            case "c":
                return f"={self.session.curate(ids)['curated_count']}"
            case "d":
                return f"={self.session.drop(ids)['curated_count']}"
            case _:
                return f"={self.session.finish()['curated_count']}"

    def letter(self, chunk_id: str) -> str | None:
        """The letter of a chunk that was met; None if it was not, or is beyond the alphabet."""
        met = list(self.session.encountered)[: len(CHUNK_LETTERS)]
        return CHUNK_LETTERS[met.index(chunk_id)] if chunk_id in met else None

    def _ids(self, letters: str) -> list[str]:
        met = list(self.session.encountered)
        places = [CHUNK_LETTERS.index(letter) for letter in letters]
        return [met[place] for place in places if place < len(met)]

    def _query(self, slots: Sequence[int], ids: Sequence[str]) -> str:
        words = [word for slot in slots for word in self.slots[slot - 1]]
        return " ".join([*words, *(company_of(self.session.encountered[i]) for i in ids)])

    def _shown(self, reply: Reply) -> str:
        results = reply.get("results")
        if not isinstance(results, list):
            return _ERROR
        shown = [
            self._mark(str(each["document_id"]), f"{each['title']} {each['snippet']}")
            for each in results
            if isinstance(each, dict)
        ]
        return "".join(shown) or _NOTHING

    def _shown_text(self, reply: Reply) -> str:
        if "error" in reply:
            return _ERROR
        return self._mark(str(reply["document_id"]), f"{reply['title']} {reply['text']}")

    def _mark(self, chunk_id: str, shown: str) -> str:
        """Letter, company's letter and matched slots of a chunk; nothing without a letter."""
        letter = self.letter(chunk_id)
        if letter is None:
            return ""
        company = company_of(self.session.encountered[chunk_id])
        companies = [company_of(title) for title in self.session.encountered.values()]
        first = CHUNK_LETTERS[companies.index(company)]
        return f"{letter}{first}{matched_slots(self.slots, shown)}"


_NAMES = {"s": "search", "g": "grep", "r": "read", "c": "curate", "d": "drop", "f": "finish"}


def company_of(title: str) -> str:
    """The company in a chunk's title."""
    return title.partition(" · ")[0]


def matched_slots(slots: Sequence[Sequence[str]], text: str) -> str:
    """Digits of the slots of which two words, or all of fewer, stand in the text."""
    words = set(words_of(text))
    return "".join(
        str(number)
        for number, slot in enumerate(slots, start=1)
        if slot and len(words.intersection(slot)) >= min(SLOT_MATCH, len(slot))
    )
