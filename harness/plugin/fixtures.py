"""The stages of a run as fixtures: what one needs is what it requests.

A fixture that fails keeps its exception for everyone who asks, so a stage that breaks is reported
by each item that needed it, and is not tried twice.
"""
# ruff: noqa: ARG001  what a fixture only names is its precondition

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

from harness.errors import HarnessError
from harness.plugin import assertions
from harness.plugin.collection import card_of
from harness.plugin.facts import named
from harness.plugin.options import SETTINGS
from harness.plugin.recording import RecordedRun, facts_of

if TYPE_CHECKING:
    from harness.audit.finding import Finding, GateFinding
    from harness.cards import Card
    from harness.decisions import Outcome
    from harness.protocol.services import Service
    from harness.protocol.stages import ArmSummary, ExperimentRun
    from harness.records import StepRecord

    OpenCard = Callable[[Path], ExperimentRun]


Value = TypeVar("Value")


@pytest.fixture(scope="session")
def open_card(pytestconfig: pytest.Config) -> OpenCard:
    """How a card becomes a run. Override it to put another `ExperimentRun` behind the items."""
    settings = pytestconfig.stash[SETTINGS]

    def open_run_of(card: Path) -> ExperimentRun:
        from harness.protocol.run import open_run  # imports torch: not before an item needs it

        return open_run(
            card,
            scale=settings.scale,
            runs_dir=settings.runs_dir,
            retrain=settings.retrain,
            data_dir=settings.gsm8k_dir,
            controller_pid=settings.controller_pid,
            worker=settings.worker,
        )

    return open_run_of


@pytest.fixture(scope="module")
def experiment_run(request: pytest.FixtureRequest, open_card: OpenCard) -> Iterator[RecordedRun]:
    """The run of this file's card."""
    card = card_of(request.path)
    if card is None:
        fail(
            f'{request.path.name}: no line CARD = "<id>" in plain text; add it for cards/<id>.json'
        )
    with blocking("opening the run"):
        run = RecordedRun(open_card(card), facts_of(request.config, request.node.nodeid))
    yield run
    with in_one_line("closing the run: "):
        run.close()


@pytest.fixture(scope="module")
def passed_preflights(request: pytest.FixtureRequest, experiment_run: RecordedRun) -> None:
    """Every preflight, the author's own included, and all of them passed."""
    found = experiment_run.failed_preflights()
    block_if("preflight", {**found, **assertions.failed(request, "preflight")})


@pytest.fixture(scope="module")
def pilot(
    experiment_run: RecordedRun, passed_preflights: None
) -> Mapping[str, Sequence[StepRecord]]:
    """The first steps of every arm: step records by arm, copies that a test may not change."""
    with blocking("pilot"):
        return Copies(experiment_run.pilot())


@pytest.fixture(scope="module")
def passed_gates(
    request: pytest.FixtureRequest, experiment_run: RecordedRun, pilot: object
) -> None:
    """Every activation gate, the author's own included, and all of them passed."""
    with blocking("gates"):
        found = experiment_run.failed_gates()
    block_if("gate", {**found, **assertions.failed(request, "gate")})


@pytest.fixture(scope="module")
def trained_arms(experiment_run: RecordedRun, passed_gates: None) -> None:
    """Every arm trained to its last step and evaluated."""
    with blocking("training"):
        experiment_run.train()


@pytest.fixture(scope="module")
def card(experiment_run: RecordedRun) -> Card:
    """The card as it is registered at this scale."""
    return experiment_run.card


@pytest.fixture(scope="module")
def service(experiment_run: RecordedRun) -> Service:
    """The service that trains: `client()` is the SDK's, connected when it is first asked for."""
    return experiment_run.service


@pytest.fixture(scope="module")
def arms(experiment_run: RecordedRun, trained_arms: None) -> Mapping[str, ArmSummary]:
    """What each trained arm did, by name."""
    return MappingProxyType(dict(experiment_run.facts.arms))


@pytest.fixture(scope="module")
def rows(experiment_run: RecordedRun, trained_arms: None) -> Mapping[str, Mapping[str, float]]:
    """The score of each evaluated item by its id, by arm; those of the base model as `base`."""
    with blocking("evaluation"):
        return Copies(experiment_run.rows())


@pytest.fixture
def preflight(request: pytest.FixtureRequest, experiment_run: RecordedRun) -> Finding:
    """One preflight."""
    with in_one_line():
        return experiment_run.preflight(request.param)


@pytest.fixture
def gate(request: pytest.FixtureRequest, experiment_run: RecordedRun, pilot: object) -> GateFinding:
    """One activation gate, measured on the pilot."""
    with in_one_line():
        return experiment_run.gate(request.param)


@pytest.fixture
def arm(
    request: pytest.FixtureRequest, experiment_run: RecordedRun, trained_arms: None
) -> ArmSummary:
    """One trained arm."""
    with in_one_line():
        return experiment_run.arm(request.param)


@pytest.fixture
def criterion(
    request: pytest.FixtureRequest, experiment_run: RecordedRun, trained_arms: None
) -> Outcome:
    """The registered rule applied to one criterion, an error if the data do not fit the rule."""
    with in_one_line():
        outcome = experiment_run.decision().outcomes[request.param]
    if outcome.invalid:
        fail(outcome.sentence)
    return outcome


class Copies(Mapping[str, Value]):
    """The same by name, each copied when asked for: what a test changes reaches no decision."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self._copied: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._copied:
            self._copied[name] = copy.deepcopy(self._values[name])
        return self._copied[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@contextlib.contextmanager
def in_one_line(prefix: str = "") -> Iterator[None]:
    """Report an error that the harness raises on purpose without a traceback: it names its cure."""
    try:
        yield
    except HarnessError as error:
        fail(prefix + named(error))


def blocking(stage: str) -> contextlib.AbstractContextManager[None]:
    """The same for a stage that others need."""
    return in_one_line(f"BLOCKED by {stage}: ")


def block_if(kind: str, failed: Mapping[str, str]) -> None:
    """End here if anything failed; the line names the first in full and the rest by name."""
    if failed:
        (name, message), *others = failed.items()
        first = message.partition("\n")[0].removeprefix(f"{kind} ").removeprefix(f"{name}: ")
        also = f" (also by {', '.join(other for other, _ in others)})" if others else ""
        fail(f"BLOCKED by {kind} {name}: {first}{also}")


def fail(line: str) -> NoReturn:
    """End the item, as an error if it is still being set up, with one line and no traceback."""
    raise pytest.fail.Exception(line, pytrace=False) from None
