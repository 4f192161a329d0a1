"""The synthetic world: companies with facts, filings that state them, questions that need them.

Everything follows from the seed. Each company has four families of three facts; a family's longer
variants add a company that has dealings with the last one, and one fact of that company. No fact
serves two families and no chunk states two facts, so families share no gold chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from harness.errors import DataError
from harness.tasks.sec_search.synthetic.attributes import (
    ATTRIBUTES,
    BOILERPLATE,
    BRIDGE_STATEMENTS,
    DISTRACTORS,
    FORMS,
    RELATIONS,
    STATEMENTS,
    TOPIC_ONLY,
    Attribute,
    Term,
)

FAMILIES = 4
# how many hops the variants of each of a company's four families add at most
HOPS = (2, 1, 0, 0)
FILINGS = 4
_ONSETS = [
    "b",
    "br",
    "c",
    "cl",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "eo"]
_KINDS = [
    "Systems",
    "Holdings",
    "Energy",
    "Foods",
    "Labs",
    "Logistics",
    "Metals",
    "Networks",
    "Optics",
    "Pharma",
    "Retail",
]


@dataclass(frozen=True)
class World:
    """Settings of a synthetic corpus.

    `companies` x `chunks_per_company` chunks, `sentences` of boilerplate in each (least and most),
    and `lexical_overlap`, the probability that a clue keeps the filings' words.

    Raises:
        DataError: fewer than 4 companies, or too few chunks to state each fact.
    """

    seed: int
    companies: int
    chunks_per_company: int = 60
    lexical_overlap: float = 0.8
    sentences: tuple[int, int] = (4, 8)

    def __post_init__(self) -> None:
        if self.companies < 4 or self.chunks_per_company < 60:
            raise DataError(
                f"{self.companies} companies of {self.chunks_per_company} chunks; at least 4 of "
                "at least 60 are needed to state each fact in up to three chunks"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A made-up name of two words for each company, all different."""
        rng, names = self.stream("names"), dict[str, None]()
        while len(names) < self.companies:
            word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(3))
            names.setdefault(f"{word.capitalize()} {rng.choice(_KINDS)}")
        return tuple(names)

    def stream(self, *purpose: str | int) -> Random:
        """The named random stream of a purpose."""
        return Random("/".join(map(str, (self.seed, *purpose))))


@dataclass(frozen=True)
class PlantedFact:
    """A fact of a company and the chunks that state it. `topic` is a relation if it bridges."""

    company: int
    topic: Term
    value: Term
    bridges: bool
    chunk_ids: tuple[str, ...]

    def sentence(self, name: str) -> str:
        """The fact in words, as the data set's `fact` field has it."""
        if self.bridges:
            return f"{name} has a {self.topic.exact} with {self.value.exact}"
        return f"{name}: {self.topic.exact} is {self.value.exact}"


@dataclass(frozen=True)
class Filed:
    """One company's chunks, as (id, document text), and what they state.

    `families` are triples whose last fact can be asked for; `hops[s]` is the bridge from the
    company that the s-th hop leaves, and the fact that it leads to.
    """

    chunks: tuple[tuple[str, str], ...]
    families: tuple[tuple[PlantedFact, ...], ...]
    hops: tuple[tuple[PlantedFact, PlantedFact], ...]


def hop_source(world: World, company: int, slot: int) -> int:
    """The company that the bridge in this slot of `company` leads from.

    Slots 0 and 1 are first hops of families 0 and 1, slot 2 is the second hop of family 0; each
    slot serves one family.
    """
    return (company - (1, 2, 2)[slot]) % world.companies


def file_company(world: World, company: int) -> Filed:
    """Draw one company: values, where each fact is stated, and the text of every chunk."""
    rng = world.stream("company", company)
    plain = rng.sample([a for a in ATTRIBUTES if not a.is_answer], 2 * FAMILIES)
    answers = rng.sample([a for a in ATTRIBUTES if a.is_answer], 2 * FAMILIES)
    groups: list[list[tuple[Term, Term, bool]]] = []
    for family in range(FAMILIES):
        own = [*plain[2 * family : 2 * family + 2], answers[family]]
        groups.append([(each.topic, rng.choice(each.pool), False) for each in own])
    for slot, relation in enumerate(RELATIONS):
        source = world.names[hop_source(world, company, slot)]
        new = answers[FAMILIES + slot]
        bridge = (relation, Term(source, "it"), True)
        groups.append([bridge, (new.topic, rng.choice(new.pool), False)])
    stated = [fact for group in groups for fact in group]
    places = iter(_places(world, company, rng))
    chunk_ids = [tuple(next(places) for _ in range(rng.randint(1, 3))) for _ in stated]
    facts = iter([PlantedFact(company, *f, ids) for f, ids in zip(stated, chunk_ids, strict=True)])
    planted = [tuple(next(facts) for _ in group) for group in groups]
    states = {chunk: fact for group in planted for fact in group for chunk in fact.chunk_ids}
    chunks = _chunks(world, company, states, rng)
    hops = tuple((bridge, new) for bridge, new in planted[FAMILIES:])
    return Filed(tuple(chunks), tuple(planted[:FAMILIES]), hops)


def _accessions(company: int) -> list[tuple[str, int]]:
    """Each filing's accession number and year."""
    cik = 1_000_000 + 37 * company
    return [
        (f"{cik:010d}-{20 + n:02d}-{(company * FILINGS + n) % 10**6:06d}", 2020 + n)
        for n in range(FILINGS)
    ]


def _places(world: World, company: int, rng: Random) -> list[str]:
    """Every chunk id of a company, shuffled."""
    ids = [
        f"{accession}_{index}"
        for accession, _ in _accessions(company)
        for index in range(-(-world.chunks_per_company // FILINGS))
    ][: world.chunks_per_company]
    rng.shuffle(ids)
    return ids


def _chunks(
    world: World, company: int, states: dict[str, PlantedFact], rng: Random
) -> Iterator[tuple[str, str]]:
    name = world.names[company]
    left = world.chunks_per_company
    for number, (accession, year) in enumerate(_accessions(company)):
        form = FORMS[(company + number) % len(FORMS)]
        date = f"{year}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        for index in range(min(left, -(-world.chunks_per_company // FILINGS))):
            chunk_id = f"{accession}_{index}"
            sentences = [_filler(name, rng) for _ in range(rng.randint(*world.sentences))]
            stated = states.get(chunk_id)
            if stated is not None:
                sentences.insert(rng.randrange(len(sentences) + 1), _statement(name, stated, rng))
            head = f"Company: {name}\nFiling Date: {date}\nForm: {form}\nChunk {index}\n---\n"
            yield chunk_id, head + " ".join(sentences)
        left -= index + 1


def _statement(name: str, fact: PlantedFact, rng: Random) -> str:
    template = rng.choice(BRIDGE_STATEMENTS if fact.bridges else STATEMENTS)
    words = {"topic": fact.topic.exact, "relation": fact.topic.exact, "value": fact.value.exact}
    return template.format(company=name, **words)


def _filler(name: str, rng: Random) -> str:
    """A sentence that states no fact: mostly boilerplate, sometimes a topic or a value alone."""
    kind = rng.random()
    templates: Sequence[str] = BOILERPLATE
    if kind < 0.08:
        templates = TOPIC_ONLY
    elif kind < 0.16:
        templates = DISTRACTORS
    about: Attribute = rng.choice(ATTRIBUTES)
    return rng.choice(templates).format(
        company=name,
        topic=about.topic.exact,
        value=rng.choice(about.pool).exact,
        number=rng.randint(11, 99),
        other=rng.randint(11, 99),
    )
