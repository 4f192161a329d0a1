"""The preflights: how the evidence of each is collected, what it is kept under, and its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import JsonValue

from harness.audit import (
    audit,
    baseline_correctness,
    capability,
    feasibility,
    forecast,
    pins,
    reference_correctness,
    restoration,
    server_loss,
)
from harness.audit.finding import Finding
from harness.audit.throw_away import ThrowAwayEvidence
from harness.cards import Arm, Experiment
from harness.cards.registration import LossBackend
from harness.evidence import Evidence
from harness.protocol.services import Service
from harness.tasks.task import Task
from harness.training.identity import preflight_parts

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
class Preflight(Generic[E]):
    """One preflight.

    `name` says what evidence is collected: preflights of one name share one collection. Evidence is
    kept in the run store unless `kept` is false, which suits what is cheap and must be current.
    `served` says whether it depends on the service, `reads_test` whether it reads the test split: a
    tuning stage comes before those that do.
    """

    name: str
    evidence: type[E]
    collect: Callable[[Context], E]
    check: Callable[[E, Experiment], Finding]
    served: bool = False
    kept: bool = True
    reads_test: bool = False

    def parts(self, context: Context) -> dict[str, object]:
        """What its evidence depends on."""
        identity = context.service.identity() if self.served else {}
        return preflight_parts(context.experiment, identity)

    def document(self, context: Context) -> JsonValue:
        """Its evidence, collected now, as JSON."""
        return self.collect(context).plain()

    def finding(self, document: JsonValue, experiment: Experiment) -> Finding:
        """What its check finds in the evidence."""
        return self.check(self.evidence.of(document), experiment)


def _pins(context: Context) -> pins.PinsEvidence:
    from harness.audit.probes.pins import collect, file_sha256

    weights = None
    if context.service.embedded:
        from harness.embedded import model_dir

        folder = model_dir(context.experiment.card.base_model)
        weights = file_sha256(folder / "model.safetensors")
    return collect(context.experiment, context.cards_dir, weights)


def _baseline(context: Context) -> baseline_correctness.BaselineEvidence:
    from harness.audit.probes.baseline_correctness import collect

    return collect(context.experiment)


def _reference(context: Context) -> reference_correctness.ReferenceEvidence:
    from harness.audit.probes.reference_correctness import collect

    return collect(context.experiment, context.task(), context.cards_dir)


def _loss(context: Context) -> server_loss.LossEvidence:
    from harness.audit.probes.server_loss import collect

    service = context.service
    client, task = service.client(), context.task()
    return service.run(collect(client, service.adapter(task), context.experiment, task))


def _restoration(context: Context) -> restoration.RestorationEvidence:
    from harness.audit.probes.restoration import collect

    service = context.service
    client, task = service.client(), context.task()
    found = service.run(collect(client, service.adapter(task), context.experiment, task))
    return found.model_copy(update={"exact": service.exact})


def _throw_away(context: Context) -> ThrowAwayEvidence:
    from harness.audit.probes.throw_away import collect

    service, experiment = context.service, context.experiment
    losses = {arm.name: context.loss_backend(arm) for arm in experiment.arms}
    client, task = service.client(), context.task()
    found = service.run(collect(client, service.adapter(task), experiment, task, losses))
    resumed = found.resumed.model_copy(update={"exact": service.exact})
    return found.model_copy(update={"resumed": resumed})


def _audit(context: Context) -> audit.AuditEvidence:
    from harness.audit.probes.audit import collect

    return collect(context.experiment, context.task())


def _forecast(context: Context) -> forecast.ForecastEvidence:
    from harness.audit.probes.forecast import collect

    return collect(context.experiment, context.task())


# each has an evidence type of its own, matched with its check where it is constructed
PREFLIGHTS: dict[str, Preflight[Any]] = {
    "pins": Preflight("pins", pins.PinsEvidence, _pins, pins.check, kept=False),
    "baseline_correctness": Preflight(
        "baseline_correctness",
        baseline_correctness.BaselineEvidence,
        _baseline,
        baseline_correctness.check,
    ),
    "reference_correctness": Preflight(
        "reference_correctness",
        reference_correctness.ReferenceEvidence,
        _reference,
        reference_correctness.check,
    ),
    "server_loss": Preflight(
        "server_loss", server_loss.LossEvidence, _loss, server_loss.check, served=True
    ),
    "restoration": Preflight(
        "restoration",
        restoration.RestorationEvidence,
        _restoration,
        restoration.check,
        served=True,
    ),
    # one set of throw-away steps answers two questions: can it be done, and how long will it take
    "capability": Preflight(
        "throw_away",
        ThrowAwayEvidence,
        _throw_away,
        capability.check,
        served=True,
        reads_test=True,
    ),
    "feasibility": Preflight(
        "throw_away",
        ThrowAwayEvidence,
        _throw_away,
        feasibility.check,
        served=True,
        reads_test=True,
    ),
    "audit": Preflight("audit", audit.AuditEvidence, _audit, audit.check, reads_test=True),
    "forecast": Preflight("forecast", forecast.ForecastEvidence, _forecast, forecast.check),
}
