"""Reading card, registration and scale, hashed and checked.

A card `<id>.json` has its registration beside it as `<id>.registration.json` and its embedded
scale as `<id>.embedded.json`; or a test file states all of it in a dict. What a registration
inherits stands under what was written. The card's bytes are never written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import JsonValue, ValidationError

from harness.cards.card import Card, ClusterFile, Frozen
from harness.cards.consistency import experiment_problems, scale_problems
from harness.cards.documents import (
    Document,
    parse,
    read_bytes,
    read_document,
    sha256,
    shown,
    written_in,
)
from harness.cards.experiment import BUILT_IN, Experiment, Scale
from harness.cards.inherited import defaults_of, inherited, with_schedules
from harness.cards.merge import merge_patch
from harness.cards.registration import OwnKernel, Registration
from harness.components import Components
from harness.errors import CardError

REQUIRED = ("card", "registration")
DEFAULT = "default"

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
        card_path: the card's JSON file, or a test file that states its parts in a dict.
        scale: `embedded`, `full`, or the path of a scale file.

    Raises:
        CardError: one line a problem, all problems at once.
    """
    problems: list[str] = []
    written = _written(card_path, problems)
    default = written.get(DEFAULT)
    before: JsonValue = {
        part: inherited(default, part, written[part].content)
        for part in REQUIRED
        if part in written
    }
    stated, registered = _models(before, written, "", problems)
    chosen = _scale(card_path, scale, written, problems)
    if stated is None or registered is None or chosen is None:
        raise CardError("\n".join(problems))
    after = merge_patch(before, chosen.model.patch)
    card, registration = _models(after, written, f" at scale {chosen.model.name}", problems)
    problems += _other_card_problems(registered, card_path, written["card"].sha256)
    if card is None or registration is None:
        raise CardError("\n".join(problems))

    components = _components(card_path, card, registration, problems)
    hashes = [written["card"].sha256, written["registration"].sha256, chosen.sha256]
    sources = sorted({source.sha256 for source in components.sources.values()})
    inherits = [] if default is None else [default.sha256]
    experiment = Experiment(
        id=experiment_id(card_path),
        card=card,
        registration=registration,
        scale=chosen.model,
        card_sha256=hashes[0],
        registration_sha256=hashes[1],
        scale_sha256=hashes[2],
        sha256=sha256("\n".join([*hashes, *inherits, *sources]).encode()),
        components=components,
    )
    found = scale_problems(before, after, chosen.model.changes, inherited=chosen.inherited)
    # names and shapes first: the rest reads arms by name
    if not problems:
        found.extend(experiment_problems(experiment))
    problems += [f"{card_path.name}: {problem}" for problem in found]
    if problems:
        raise CardError("\n".join(problems))
    return experiment


def experiment_id(card_path: Path) -> str:
    """What an experiment is called: its card's file, or the test file without `test_`."""
    return card_path.stem.removeprefix("test_") if _in_python(card_path) else card_path.stem


def read_clusters(cards_dir: Path, pinned: ClusterFile) -> dict[str, str | int]:
    """The cluster of each item id, from the pinned file beside the card.

    Raises:
        CardError: it can't be read, is not the pinned file, or is no object of texts or numbers.
    """
    path = cards_dir / pinned.path
    data = read_bytes(path)
    if sha256(data) != pinned.sha256:
        raise CardError(
            f"{path.name}: sha256 {sha256(data)[:12]} is not the registered "
            f"{pinned.sha256[:12]}; restore the registered clusters"
        )
    document = parse(data, path.name)
    if not isinstance(document, dict):
        raise CardError(f"{path.name}: holds no object; map each item id to its cluster")
    clusters = {item: c for item, c in document.items() if isinstance(c, str | int)}
    if len(clusters) < len(document):
        odd = next(item for item in document if item not in clusters)
        raise CardError(f"{path.name}: the cluster of {odd!r} is neither a text nor a whole number")
    return clusters


@dataclass(frozen=True)
class _Scale:
    """A scale, the sha256 of what states it, and whether it is that of an inherited default."""

    model: Scale
    sha256: str
    inherited: bool = False


def _in_python(card_path: Path) -> bool:
    return card_path.suffix == ".py"


def _written(card_path: Path, problems: list[str]) -> dict[str, Document]:
    """The parts that the author wrote, and the default that they inherit."""
    written: dict[str, Document] = {}
    if _in_python(card_path):
        try:
            written = written_in(card_path)
        except CardError as error:
            problems.append(str(error))
    else:
        suffixes = dict(zip(REQUIRED, (".json", ".registration.json"), strict=True))
        for part, suffix in suffixes.items():
            try:
                written[part] = read_document(card_path.with_suffix(suffix))
            except CardError as error:
                problems.append(str(error))
    if "registration" not in written:
        return written
    try:
        default = defaults_of(written["registration"].content)
    except CardError as error:
        problems.append(f"{written.pop('registration').name}: {error}")
        return written
    return written if default is None else {**written, DEFAULT: default}


def _models(
    document: JsonValue, written: Mapping[str, Document], at: str, problems: list[str]
) -> tuple[Card | None, Registration | None]:
    whole = with_schedules(document)
    assert isinstance(whole, dict)
    card = registration = None
    if "card" in written:
        card = _validate(Card, whole.get("card"), written["card"].name + at, problems)
    if "registration" in written:
        name = written["registration"].name + at
        registration = _validate(Registration, whole.get("registration"), name, problems)
    return card, registration


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


def _scale(
    card_path: Path, scale: str, written: Mapping[str, Document], problems: list[str]
) -> _Scale | None:
    if scale == FULL.name:
        return _Scale(FULL, sha256(b""))
    beside = card_path.with_suffix(".embedded.json")
    path = beside if scale == "embedded" else Path(scale)
    if scale != "embedded" and not path.is_file():
        problems.append(
            f"scale {path.name} is neither embedded, full nor a file at {path}; name one"
        )
        return None
    default, of_default = written.get(DEFAULT), False
    document = written.get("embedded") if scale == "embedded" else None
    try:
        if document is None and default is not None and path == beside and not path.is_file():
            assert isinstance(default.content, dict)
            document, of_default = replace(default, content=default.content["embedded"]), True
        document = document or read_document(path)
    except CardError as error:
        problems.append(str(error))
        return None
    model = _validate(Scale, document.content, document.name, problems)
    if model is None:
        return None
    if model.name == FULL.name:
        problems.append(
            f"{document.name}: /name is {FULL.name!r}, which is the card as registered; choose "
            "another"
        )
    return _Scale(model, document.sha256, of_default)


def _other_card_problems(
    registration: Registration, card_path: Path, card_sha256: str
) -> list[str]:
    name = f"{card_path.stem}.registration.json"
    if registration.card not in (None, card_path.stem):
        return [
            f"{name}: it registers card {registration.card!r}, not {card_path.stem!r}; "
            "give the card its own registration"
        ]
    registered = registration.card_sha256
    if registered not in (None, card_sha256):
        return [
            f"{card_path.name}: sha256 {card_sha256} is not the registered {str(registered)[:12]}; "
            "a changed card is a new registration: write this sha256 into its /card_sha256, or "
            "restore the card"
        ]
    return []


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
