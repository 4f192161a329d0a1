"""Reading card, registration and scale from disk, hashed and checked.

A card `<id>.json` has its registration beside it as `<id>.registration.json` and its embedded
scale as `<id>.embedded.json`. The card's bytes are never written.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import orjson
from pydantic import JsonValue, ValidationError

from harness.cards.card import Card, ClusterFile, Frozen
from harness.cards.consistency import experiment_problems, scale_problems
from harness.cards.experiment import BUILT_IN, Experiment, Scale
from harness.cards.merge import merge_patch
from harness.cards.registration import OwnKernel, Registration
from harness.components import Components
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
    registration_path = card_path.with_suffix(".registration.json")
    problems: list[str] = []
    stated = _load(Card, card_path, problems)
    registered = _load(Registration, registration_path, problems)
    chosen = _scale(card_path, scale, problems)
    if stated is None or registered is None or chosen is None:
        raise CardError("\n".join(problems))

    before: JsonValue = {"card": stated.document, "registration": registered.document}
    after = merge_patch(before, chosen.model.patch)
    assert isinstance(after, dict)
    at = f"at scale {chosen.model.name}"
    card = _validate(Card, after.get("card"), f"{card_path.name} {at}", problems)
    registration = _validate(
        Registration, after.get("registration"), f"{registration_path.name} {at}", problems
    )
    problems += _other_card_problems(registered.model, card_path, stated.sha256)
    if card is None or registration is None:
        raise CardError("\n".join(problems))

    components = _components(card_path, card, registration, problems)
    hashes = [part.sha256 for part in (stated, registered, chosen)]
    sources = sorted({source.sha256 for source in components.sources.values()})
    experiment = Experiment(
        id=card_path.stem,
        card=card,
        registration=registration,
        scale=chosen.model,
        card_sha256=hashes[0],
        registration_sha256=hashes[1],
        scale_sha256=hashes[2],
        sha256=_sha256("\n".join([*hashes, *sources]).encode()),
        components=components,
    )
    found = scale_problems(before, after, chosen.model.changes)
    # names and shapes first: the rest reads arms by name
    if not problems:
        found.extend(experiment_problems(experiment))
    problems += [f"{card_path.name}: {problem}" for problem in found]
    if problems:
        raise CardError("\n".join(problems))
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


@dataclass(frozen=True)
class _File(Generic[Model]):
    """One file: what it says, as it stands there and as a model, and the sha256 of its bytes."""

    document: JsonValue
    model: Model
    sha256: str


def _load(model: type[Model], path: Path, problems: list[str]) -> _File[Model] | None:
    try:
        data = _read(path)
        document = _parse(data, path)
    except CardError as error:
        problems.append(str(error))
        return None
    read = _validate(model, document, path.name, problems)
    return None if read is None else _File(document, read, _sha256(data))


def _components(
    card_path: Path, card: Card, registration: Registration, problems: list[str]
) -> Components:
    """The harness's components, those of the files that are named, and of installed packages."""
    folders, files = (card_path.parent, card_path.parent.parent), []
    for name in registration.components:
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if len(found) == 1:
            files += found
            continue
        places = " and ".join(str(folder) for folder in folders)
        problems.append(
            f"components: {name} is in {'both' if found else 'neither'} of {places}; keep one file"
        )
    try:
        return BUILT_IN.with_files(files).with_installed(_named(card, registration))
    except CardError as error:
        problems += str(error).splitlines()
        return BUILT_IN


def _named(card: Card, registration: Registration) -> set[str]:
    """Every name that may be a component's."""
    rules = [rule for rule in (card.decision_rule, registration.decision_rule) if rule is not None]
    checks = [] if card.activation_gate is None else card.activation_gate.checks
    criteria = [*registration.supporting, *(c for rule in rules for c in rule.criteria)]
    return {
        *(arm.estimator for arm in registration.arms),
        *(arm.kernel.name for arm in registration.arms if isinstance(arm.kernel, OwnKernel)),
        *(check.metric for check in (*checks, *registration.extra_gates)),
        *(rule.method for rule in rules),
        *(criterion.method for criterion in criteria if criterion.method is not None),
        *registration.preflights,
    }


def _scale(card_path: Path, scale: str, problems: list[str]) -> _File[Scale] | None:
    if scale == FULL.name:
        return _File(None, FULL, _sha256(b""))
    path = card_path.with_suffix(".embedded.json") if scale == "embedded" else Path(scale)
    if scale != "embedded" and not path.is_file():
        problems.append(
            f"scale {path.name} is neither embedded, full nor a file at {path}; name one"
        )
        return None
    read = _load(Scale, path, problems)
    if read is not None and read.model.name == FULL.name:
        problems.append(
            f"{path.name}: /name is {FULL.name!r}, which is the card as registered; choose another"
        )
    return read


def _other_card_problems(
    registration: Registration, card_path: Path, card_sha256: str
) -> list[str]:
    name = f"{card_path.stem}.registration.json"
    if registration.card != card_path.stem:
        return [
            f"{name}: it registers card {registration.card!r}, not {card_path.stem!r}; "
            "give the card its own registration"
        ]
    if registration.card_sha256 != card_sha256:
        return [
            f"{card_path.name}: sha256 {card_sha256} is not the registered "
            f"{registration.card_sha256[:12]}; a changed card is a new registration: write this "
            "sha256 into its /card_sha256, or restore the card"
        ]
    return []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CardError(
            f"{path.name}: can't be read ({error.strerror}); looked at {path}, write that file or "
            "correct its name"
        ) from None


def _parse(data: bytes, path: Path) -> JsonValue:
    def refuse_twice(pairs: list[tuple[str, object]]) -> None:
        counts = Counter(key for key, _ in pairs)
        if twice := [key for key, count in counts.items() if count > 1]:
            raise CardError(
                f"{path.name}: key {twice[0]!r} stands {counts[twice[0]]} times in one object; "
                "keep one of them"
            )

    try:
        text = data.decode("utf-8")
        document: JsonValue = orjson.loads(text)
        json.loads(text, object_pairs_hook=refuse_twice)  # orjson takes the last one
    except UnicodeDecodeError as error:
        raise CardError(
            f"{path.name}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    except orjson.JSONDecodeError as error:
        lines = error.doc.splitlines()[error.lineno - 1 : error.lineno]
        raise CardError(
            f"{path.name}: not valid JSON: {error}"
            + "".join(f", which is {shown(line.strip())}" for line in lines)
            + "; correct it there"
        ) from None
    except RecursionError:
        raise CardError(f"{path.name}: nested too deeply; flatten it") from None
    return document


def _validate(
    model: type[Model], document: JsonValue, name: str, problems: list[str]
) -> Model | None:
    try:
        # JSON mode: arrays may fill tuples, while numbers and texts stay strict
        return model.model_validate_json(orjson.dumps(document))
    except ValidationError as error:
        problems += [_problem(name, dict(details)) for details in error.errors(include_url=False)]
        return None


def _problem(name: str, details: dict[str, object]) -> str:
    location = details["loc"]
    assert isinstance(location, tuple)
    pointer = "".join(f"/{part}" for part in location if not _is_tag(part)) or "the document"
    if details["type"] == "extra_forbidden":
        return f"{name}: unknown key {pointer}; remove it or correct its spelling"
    if details["type"] == "missing":
        return f"{name}: {pointer} is missing; add it"
    return f"{name}: {pointer} is {shown(details['input'])}: {str(details['msg']).lower()}"


def _is_tag(part: object) -> bool:
    """Whether a place in a document is the tag of a union, which stands in no document."""
    return isinstance(part, str) and part.startswith("(")


def shown(value: object) -> str:
    """A value as an error line shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
