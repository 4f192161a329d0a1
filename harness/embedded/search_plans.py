"""What the nano search agent is taught: plans of mixed quality in the compact syntax.

Each decision is drawn on its own and from what is in sight, so a model that imitates the plans
has all of their habits, good and poor, and can be rewarded for the good ones. Good ones are to
search for each clue, to search again with the company that matches most clues, and to curate all
that matches. Poor ones are to curate one chunk or nothing, to curate at random, to search for too
little, and to finish early.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from harness.tasks.sec_search.compact import CHUNK_LETTERS, CompactDesk, parse_call

MAX_TURNS = 6
MAX_LETTERS = 12
FEW_LETTERS = 2

_HIT = re.compile(r"([a-zA-Z])([a-zA-Z])([1-9]*)")


@dataclass
class Sight:
    """What a plan has seen: chunks in the order of their letters, and what it has done so far.

    `companies` and `matches` have the first letter of a chunk's company and the slots that it was
    seen to match, `last` the chunks of the last answer. `searched` are slots, `searches` counts the
    calls that searched them.
    """

    slots: int
    companies: dict[str, str] = field(default_factory=dict)
    matches: dict[str, set[str]] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)
    searched: set[int] = field(default_factory=set)
    curated: set[str] = field(default_factory=set)
    searches: int = 0

    def see(self, answer: str) -> None:
        """Take in an answer that lists chunks."""
        self.last = []
        for letter, company, slots in _HIT.findall(answer):
            self.companies[letter] = company
            self.matches.setdefault(letter, set()).update(slots)
            self.last.append(letter)

    @property
    def leading_company(self) -> str:
        """The company whose chunks match most slots; of equals, the one met first."""
        matched: dict[str, set[str]] = {}
        for letter, company in self.companies.items():
            matched.setdefault(company, set()).update(self.matches[letter])
        return max(matched, key=lambda company: len(matched[company]))

    @property
    def matching(self) -> list[str]:
        """The chunks that match a slot."""
        return [letter for letter, slots in self.matches.items() if slots]


def demonstrate(desk: CompactDesk, rng: Random) -> list[tuple[str, str]]:
    """Play one plan on a fresh session: (reply, answer) of each turn, at most MAX_TURNS.

    A plan that has curated nothing before its last turn curates in it.

    Raises:
        ValueError: a plan wrote something that is no call.
    """
    sight, turns = Sight(len(desk.slots)), list[tuple[str, str]]()
    while not desk.session.finished and len(turns) < MAX_TURNS:
        late = len(turns) == MAX_TURNS - 1 and bool(sight.companies)
        reply = _last_reply(sight, rng) if late else _next_reply(sight, rng)
        call = parse_call(reply)
        if isinstance(call, str):
            raise ValueError(f"a plan wrote {reply!r}: {call}")
        answer = desk.run(call)
        if call.verb in "sgr":
            sight.see(answer)
        sight.searches += call.verb == "s"
        sight.searched.update(call.slots)
        sight.curated.update(call.letters if call.verb == "c" else "")
        turns.append((reply, answer))
    return turns


def _last_reply(sight: Sight, rng: Random) -> str:
    return "f" if sight.curated else _curate(sight, rng)


def _next_reply(sight: Sight, rng: Random) -> str:
    met = bool(sight.companies)
    if not met or (not sight.curated and rng.random() > _curating_now(sight.searches)):
        return "f" if rng.random() < 0.03 else _search(sight, rng)
    if not sight.curated:
        return "f" if rng.random() < 0.08 else _curate(sight, rng)
    act = _drawn({"finish": 68, "search": 18, "curate": 11, "drop": 3}, rng)
    if act == "finish":
        return "f"
    if act == "drop":
        return f"d{rng.choice(sorted(sight.curated))}"
    return _search(sight, rng) if act == "search" else _curate(sight, rng)


def _curating_now(searches: int) -> float:
    """How likely a plan is to curate after so many searches, rather than to search on."""
    return min(0.22 * searches, 0.8)


def _search(sight: Sight, rng: Random) -> str:
    """Mostly the next slot; sometimes any, several at once, with a company, or another tool."""
    slots = range(1, sight.slots + 1)
    unsearched = [slot for slot in slots if slot not in sight.searched]
    following = min(unsearched, default=rng.choice(slots))
    ways = {"next": 42, "any": 14, "several": 10}
    if sight.companies:
        ways |= {"next, company": 20, "any, company": 9, "read": 3, "grep": 2}
    way = _drawn(ways, rng)
    if way == "several":
        chosen = sorted(rng.sample(slots, min(len(slots), rng.randint(2, 3))))
        return f"s{''.join(map(str, chosen))}"
    if way == "read":
        return f"r{rng.choice(sight.last or sorted(sight.companies))}"
    slot = following if way.startswith("next") else rng.choice(slots)
    if way == "grep":
        return f"g{slot}"
    company = ""
    if way.endswith("company"):
        leads = rng.random() < 0.7
        company = sight.leading_company if leads else rng.choice(sorted(sight.companies))
    return f"s{slot}{company}"


def _curate(sight: Sight, rng: Random) -> str:
    """All that matches, all of the last answer, all that was met, or, mostly, one or two."""
    ways: dict[str, Callable[[], Sequence[str]]] = {
        "matching": lambda: sight.matching,
        "last": lambda: sight.last,
        "met": lambda: list(sight.companies),
        "few": lambda: rng.sample(
            list(sight.companies), min(len(sight.companies), rng.randint(1, FEW_LETTERS))
        ),
    }
    way = _drawn({"matching": 26, "last": 20, "met": 16, "few": 38}, rng)
    letters = ways[way]() or [rng.choice(list(sight.companies))]
    ordered = sorted(letters, key=CHUNK_LETTERS.index)[:MAX_LETTERS]
    return f"c{''.join(ordered)}"


def _drawn(shares: dict[str, int], rng: Random) -> str:
    """One of the keys, by its share."""
    return rng.choices(list(shares), list(shares.values()))[0]
