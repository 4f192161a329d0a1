"""From a test file and its card to items: one per preflight, gate, arm and criterion."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.audit import preflight_ids
from harness.cards import Experiment, load_experiment
from harness.errors import CardError
from harness.plugin.options import SETTINGS

STAGES = {"preflight": "preflight", "gate": "gate", "arm": "arm", "criterion": "decision"}
"""The fixture that a test asks for, and the stage that it thereby speaks of."""

_CARD = re.compile(r"""^CARD\s*=\s*(?:["']([^"']+)["']|\{)""", re.MULTILINE)


@dataclass(frozen=True)
class Subject:
    """What one item speaks of: the preflight, gate, arm or criterion called `name`.

    `asserted` is a test of the author's own, which speaks of itself.
    """

    experiment: str
    scale: str
    stage: str
    name: str
    asserted: bool = False

    def properties(self) -> list[tuple[str, str]]:
        """What JUnit says of the item; `arm` is empty if the item speaks of no single arm."""
        return [
            ("experiment", self.experiment),
            ("scale", self.scale),
            ("stage", self.stage),
            ("arm", self.name if self.stage == "arm" else ""),
        ]


SUBJECT = pytest.StashKey[Subject]()
_LOADED = pytest.StashKey[dict[Path, Experiment]]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make an item of everything that the card declares, in the card's order."""
    wanted = [fixture for fixture in STAGES if fixture in metafunc.fixturenames]
    path = Path(str(metafunc.module.__file__))
    card = card_of(path) if wanted else None
    if card is None:
        return
    where = f"{path.name}::{metafunc.function.__name__}"
    if len(wanted) > 1:
        raise pytest.Collector.CollectError(
            f"{where} asks for {' and '.join(wanted)}; a test speaks of one of them"
        )
    try:
        names = declared(load(metafunc.config, card))[STAGES[wanted[0]]]
    except CardError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    if not names:
        raise pytest.Collector.CollectError(
            f"{where}: {card.name} declares no {wanted[0]}; remove the test"
        )
    metafunc.parametrize(wanted[0], names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say what each item speaks of, before it runs, so that a blocked one says it too."""
    for item in items:
        subject = subject_of(config, item)
        if subject is not None:
            item.stash[SUBJECT] = subject
            item.user_properties.extend(subject.properties())


def subject_of(config: pytest.Config, item: pytest.Item) -> Subject | None:
    """What an item speaks of, None if it is not an experiment's."""
    callspec = getattr(item, "callspec", None)
    fixture = next((name for name in STAGES if callspec and name in callspec.params), None)
    card = card_of(item.path) if fixture else None
    if callspec is None or fixture is None or card is None:
        return None
    experiment = load(config, card)
    return Subject(
        experiment.id, experiment.scale.name, STAGES[fixture], str(callspec.params[fixture])
    )


def card_of(test_file: Path) -> Path | None:
    """The card that a test file names, whether or not it exists, or the file that states it.

    Read from the source: under xdist the controller, which tells the verdict, imports no test.
    """
    found = _CARD.search(test_file.read_text("utf-8", errors="replace"))
    if found is None:
        return None
    return test_file.parent / "cards" / f"{found[1]}.json" if found[1] else test_file


def load(config: pytest.Config, card: Path) -> Experiment:
    """The experiment at the session's scale, read once.

    Raises:
        CardError: one line a problem.
    """
    loaded = config.stash.setdefault(_LOADED, {})
    if card not in loaded:
        loaded[card] = load_experiment(card, config.stash[SETTINGS].scale)
    return loaded[card]


def declared(experiment: Experiment) -> dict[str, list[str]]:
    """Names of what an experiment declares, by stage, in its order."""
    return {
        "preflight": list(preflight_ids(experiment)),
        "gate": [gate.metric for gate in experiment.gates],
        "arm": [arm.name for arm in experiment.arms],
        "decision": [criterion.id for criterion in experiment.rule.criteria],
    }
