"""The preflights: how the evidence of each is collected, what it is kept under, and its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.cards import Experiment
from harness.checks.evidence import Evidence
from harness.checks.finding import Finding
from harness.protocol.services import Service
from harness.tasks.gsm8k import Task
from harness.training.identity import preflight_parts


@dataclass(frozen=True)
class Context:
    """What collectors are given. `task` reads the data when it is first asked."""

    experiment: Experiment
    card_path: Path
    task: Callable[[], Task]
    service: Service


@dataclass(frozen=True)
class Preflight:
    """One preflight.

    `evidence` names what is collected: preflights that share a name share one collection. It is
    kept in the run store unless `kept` is false, which suits what is cheap and must be current.
    `served` says whether it depends on the service.
    """

    evidence: str
    collect: Callable[[Context], Evidence]
    check: Callable[[Evidence, Experiment], Finding]
    served: bool
    kept: bool = True

    def parts(self, context: Context) -> dict[str, object]:
        """What its evidence depends on."""
        service = context.service.identity() if self.served else {}
        return preflight_parts(context.experiment, service)
