"""Named defaults that a light card and registration inherit, and what they leave to be derived.

A default is a file of this package, `defaults/NAME_VERSION.json`. A published one is never edited:
a change is a new file with the next number, so a name means the same for ever.
"""

from pathlib import Path

from pydantic import JsonValue

from harness.cards.documents import Document, Object, read_document
from harness.cards.merge import merge_patch
from harness.components import nearest
from harness.errors import CardError

FOLDER = Path(__file__).parent / "defaults"


def defaults_of(registration: JsonValue) -> Document | None:
    """The default that a registration inherits, by the name that it gives; None without one.

    Its content has the parts `card`, `registration` and `embedded`.

    Raises:
        CardError: there is none of that name.
    """
    name = registration.get("inherits") if isinstance(registration, dict) else None
    if not isinstance(name, str):
        return None
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    if name not in known:
        raise CardError(
            f"registration inherits {name!r}, which there is not{nearest(name, known)}; use one of "
            f"{', '.join(known)}"
        )
    return read_document(FOLDER / f"{name}.json")


def inherited(default: Document | None, part: str, written: JsonValue) -> JsonValue:
    """What was written of a part, over what it inherits."""
    if default is None:
        return written
    assert isinstance(default.content, dict)
    return merge_patch(default.content[part], written)


def with_schedules(document: JsonValue) -> JsonValue:
    """Card and registration, each registered schedule completed from the card.

    A schedule needs its `group_size` alone. The card says the steps, the rate and the batch, and
    the rule's first seed is the arm's; so each of these stands in one place.
    """
    assert isinstance(document, dict)
    card, registration = document.get("card"), document.get("registration")
    if not isinstance(card, dict) or not isinstance(registration, dict):
        return document
    arms = registration.get("arms")
    if not isinstance(arms, list):
        return document
    derived = _derived(card, registration)
    completed = [_completed(arm, derived, card.get("batch_size")) for arm in arms]
    return {**document, "registration": {**registration, "arms": completed}}


def _derived(card: Object, registration: Object) -> Object:
    optimizer, rule = card.get("optimizer"), card.get("decision_rule")
    rule = rule or registration.get("decision_rule")
    seeds = rule.get("seeds") if isinstance(rule, dict) else None
    found = {
        "seed": seeds[0] if isinstance(seeds, list) and seeds else None,
        "steps": card.get("steps"),
        "learning_rate": optimizer.get("lr") if isinstance(optimizer, dict) else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _completed(arm: JsonValue, derived: Object, batch: JsonValue) -> JsonValue:
    schedule = arm.get("schedule") if isinstance(arm, dict) else None
    if not isinstance(arm, dict) or not isinstance(schedule, dict):
        return arm
    size, prompts = schedule.get("group_size"), Object()
    if isinstance(size, int) and isinstance(batch, int) and size > 0:
        # a batch that is no multiple is told with the schedule's other problems
        prompts = {"groups_per_batch": max(1, batch // size)}
    return {**arm, "schedule": {**derived, **prompts, **schedule}}
