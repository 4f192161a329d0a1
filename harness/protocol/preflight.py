"""A preflight, declared once: what evidence it collects, what it is kept under, and its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pydantic import JsonValue

from harness.audit.finding import Finding
from harness.cards import Arm, Experiment
from harness.cards.registration import LossBackend
from harness.components import Component
from harness.evidence import Evidence

if TYPE_CHECKING:
    from harness.protocol.services import Service
    from harness.tasks.task import Task

E = TypeVar("E", bound=Evidence)


@dataclass(frozen=True)
class Context:
    """What collectors are given. `task` reads the data when it is first asked.

    `loss_backend` says who computes an arm's loss.
    """

    experiment: Experiment
    cards_dir: Path
    task: Callable[[], Task]
    service: Service
    loss_backend: Callable[[Arm], LossBackend]


@dataclass(frozen=True)
class Preflight(Component, Generic[E]):
    """One preflight.

    `collection` says what evidence is collected: preflights of one collection share it. Evidence is
    kept in the run store unless `kept` is false, which suits what is cheap and must be current.
    `served` says whether it depends on the service, `reads_test` whether it reads the test split: a
    tuning stage comes before those that do.
    """

    kind: ClassVar[str] = "preflight"

    collection: str
    evidence: type[E]
    collect: Callable[[Context], E]
    check: Callable[[E, Experiment], Finding]
    served: bool = False
    kept: bool = True
    reads_test: bool = False

    @property
    def home(self) -> str:
        """The module that declares it."""
        return self.check.__module__

    def parts(self, context: Context) -> dict[str, object]:
        """What its evidence depends on."""
        from harness.training.identity import preflight_parts

        identity = context.service.identity() if self.served else {}
        return preflight_parts(context.experiment, identity)

    def document(self, context: Context) -> JsonValue:
        """Its evidence, collected now, as JSON."""
        return self.collect(context).plain()

    def finding(self, document: JsonValue, experiment: Experiment) -> Finding:
        """What its check finds in the evidence."""
        return self.check(self.evidence.of(document), experiment)


def preflight(
    name: str | None = None,
    *,
    evidence: type[E],
    collect: Callable[[Context], E],
    collection: str | None = None,
    served: bool = False,
    kept: bool = True,
    reads_test: bool = False,
) -> Callable[[Callable[[E, Experiment], Finding]], Preflight[E]]:
    """Declare a check of collected evidence as a preflight.

    Args:
        name: what a registration calls it; the function's own name if not given.
        evidence: what the collector returns, a model that is plain JSON.
        collect: gathers the evidence, once.
        collection: shared with another preflight that checks the same evidence.
        served: whether the evidence depends on the service.
        kept: whether evidence is kept in the run store.
        reads_test: whether it reads the test split.
    """

    def declare(check: Callable[[E, Experiment], Finding]) -> Preflight[E]:
        called = name or check.__name__
        return Preflight(
            called, collection or called, evidence, collect, check, served, kept, reads_test
        )

    return declare
