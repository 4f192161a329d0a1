"""Multi-clue questions over the synthetic world, in the published record form."""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from harness.tasks.sec_search.synthetic.world import HOPS, Filed, PlantedFact, World

_CLUES = ("Its {topic} is {value}.", "The company has {value} as its {topic}.")
_BRIDGE = "Another company has a {relation} with that one."
_ASKED = "What is the {topic} of the company that was mentioned last?"
TEMPLATES = (*_CLUES, _BRIDGE, _ASKED)


def question_rows(world: World, filed: Mapping[int, Filed]) -> Iterator[dict[str, str]]:
    """The rows of the questions of every family, its variants of 3, 5 and 7 facts.

    Variant v adds v hops. Ids are `<family>_<variant>`.
    """
    for company in range(world.companies):
        for family in range(len(HOPS)):
            for hops in range(HOPS[family] + 1):
                facts = facts_of(world, filed, company, family, hops)
                rng = world.stream("question", company, family)
                yield {
                    "stage": "rl",
                    "dataset_name": "sec",
                    "query_id": f"{company * len(HOPS) + family}_{hops}",
                    "query": question_text(facts, rng, world.lexical_overlap),
                    "answer": facts[-1].value.exact,
                    "document_ids_json": _facts_json(world, facts),
                }


def facts_of(
    world: World, filed: Mapping[int, Filed], company: int, family: int, hops: int
) -> list[PlantedFact]:
    """The facts of a variant: the family's three, then two for each hop.

    The first hop of family f leads to the company f + 1 further on, into slot f; the second to
    the company after the next, into slot 2.
    """
    facts = list(filed[company].families[family])
    for hop in range(hops):
        if hop == 0:
            target, slot = (company + family + 1) % world.companies, family
        else:
            target, slot = (target + 2) % world.companies, 2
        facts += filed[target].hops[slot]
    return facts


def question_text(facts: Sequence[PlantedFact], rng: Random, lexical_overlap: float) -> str:
    """One sentence for each fact; the last is asked for, and no company is named."""
    sentences = []
    for fact in facts[:-1]:
        topic, value = (term.worded(rng, lexical_overlap) for term in (fact.topic, fact.value))
        if fact.bridges:
            sentences.append(_BRIDGE.format(relation=topic))
        else:
            sentences.append(rng.choice(_CLUES).format(topic=topic, value=value))
    return " ".join([*sentences, _ASKED.format(topic=facts[-1].topic.worded(rng, lexical_overlap))])


def _facts_json(world: World, facts: Sequence[PlantedFact]) -> str:
    return json.dumps(
        [
            {
                "fact": fact.sentence(world.names[fact.company]),
                "chunk_ids": list(fact.chunk_ids),
                "is_final_answer": fact is facts[-1],
            }
            for fact in facts
        ]
    )
