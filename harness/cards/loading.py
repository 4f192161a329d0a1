"""Reading card, registration and scale from disk, hashed and checked.

A card `<id>.json` has its registration beside it as `<id>.registration.json` and its embedded
scale as `<id>.embedded.json`. The card's bytes are never written.
"""

import hashlib
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import JsonValue, ValidationError

from harness.cards.card import Card, ClusterFile, Frozen
from harness.cards.consistency import experiment_problems, scale_problems
from harness.cards.experiment import Experiment, Scale
from harness.cards.merge import merge_patch
from harness.cards.registration import Registration
from harness.errors import CardError

FULL = Scale(
    name="full",
    claims="the card as registered",
    service="remote",
    data="published",
    changes=[],
    patch={},
)

Model = TypeVar("Model", bound=Frozen)


def load_experiment(card_path: Path, scale: str = "embedded") -> Experiment:
    """Read a card with its registration, apply a scale, and check that all of it fits together.

    Args:
        card_path: the card's JSON file.
        scale: `embedded`, `full`, or the path of a scale file.

    Raises:
        CardError: one line a problem, all problems at once.
    """
    card_bytes = _read(card_path)
    registration_path = card_path.with_suffix(".registration.json")
    registration_bytes = _read(registration_path)
    scale_bytes, chosen = _scale(card_path, scale)
    card_document = _parse(card_bytes, card_path)
    registration_document = _parse(registration_bytes, registration_path)
    before: JsonValue = {"card": card_document, "registration": registration_document}

    _validate(Card, card_document, card_path.name)
    registered = _validate(Registration, registration_document, registration_path.name)
    _refuse_other_card(registered, card_path, _sha256(card_bytes))

    after = merge_patch(before, chosen.patch)
    assert isinstance(after, dict)
    card = _validate(Card, after.get("card"), f"{card_path.name} at scale {chosen.name}")
    registration = _validate(
        Registration, after.get("registration"), f"{registration_path.name} at scale {chosen.name}"
    )
    hashes = [_sha256(part) for part in (card_bytes, registration_bytes, scale_bytes)]
    experiment = Experiment(
        id=card_path.stem,
        card=card,
        registration=registration,
        scale=chosen,
        card_sha256=hashes[0],
        registration_sha256=hashes[1],
        scale_sha256=hashes[2],
        sha256=_sha256("\n".join(hashes).encode()),
    )
    problems = scale_problems(before, after, chosen.changes)
    # names and shapes first: the rest reads arms by name
    problems.extend(experiment_problems(experiment))
    if problems:
        raise CardError("\n".join(f"{card_path.name}: {problem}" for problem in problems))
    return experiment


def read_clusters(cards_dir: Path, pinned: ClusterFile) -> dict[str, str | int]:
    """The cluster of each item id, from the pinned file beside the card.

    Raises:
        CardError: it can't be read, is not the pinned file, or is no object of texts or numbers.
    """
    path = cards_dir / pinned.path
    data = _read(path)
    if _sha256(data) != pinned.sha256:
        raise CardError(
            f"{path.name}: sha256 {_sha256(data)[:12]} is not the registered "
            f"{pinned.sha256[:12]}; restore the registered clusters"
        )
    document = _parse(data, path)
    if not isinstance(document, dict):
        raise CardError(f"{path.name}: holds no object; map each item id to its cluster")
    clusters = {item: c for item, c in document.items() if isinstance(c, str | int)}
    if len(clusters) < len(document):
        odd = next(item for item in document if item not in clusters)
        raise CardError(f"{path.name}: the cluster of {odd!r} is neither a text nor a whole number")
    return clusters


def _scale(card_path: Path, scale: str) -> tuple[bytes, Scale]:
    if scale == "full":
        return b"", FULL
    path = card_path.with_suffix(".embedded.json") if scale == "embedded" else Path(scale)
    data = _read(path)
    return data, _validate(Scale, _parse(data, path), path.name)


def _refuse_other_card(registration: Registration, card_path: Path, card_sha256: str) -> None:
    if registration.card != card_path.stem:
        raise CardError(
            f"{card_path.stem}.registration.json: it registers card {registration.card!r}, "
            f"not {card_path.stem!r}; give the card its own registration"
        )
    if registration.card_sha256 != card_sha256:
        raise CardError(
            f"{card_path.name}: sha256 {card_sha256[:12]} is not the registered "
            f"{registration.card_sha256[:12]}; a changed card is a new registration"
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CardError(
            f"{path.name}: can't be read ({error.strerror}); looked at {path}"
        ) from None


def _parse(data: bytes, path: Path) -> JsonValue:
    try:
        document: JsonValue = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CardError(f"{path.name}: not valid JSON: {error}") from None
    return document


def _validate(model: type[Model], document: JsonValue, name: str) -> Model:
    try:
        # JSON mode: arrays may fill tuples, while numbers and texts stay strict
        return model.model_validate_json(orjson.dumps(document))
    except ValidationError as error:
        lines = [_problem(name, dict(details)) for details in error.errors(include_url=False)]
        raise CardError("\n".join(lines)) from None


def _problem(name: str, details: dict[str, object]) -> str:
    location = details["loc"]
    assert isinstance(location, tuple)
    pointer = "".join(f"/{part}" for part in location)
    if details["type"] == "extra_forbidden":
        return f"{name}: unknown key {pointer}; remove it or correct its spelling"
    if details["type"] == "missing":
        return f"{name}: {pointer} is missing; add it"
    shown = repr(details["input"])
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{name}: {pointer} is {shown}: {str(details['msg']).lower()}"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
