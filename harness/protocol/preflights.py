"""The harness's own preflights: how the evidence of each is collected, and its check."""

from __future__ import annotations

from functools import partial
from typing import Any

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
from harness.audit.throw_away import ThrowAwayEvidence
from harness.cards import Experiment
from harness.protocol.preflight import Context, Preflight, preflight


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


# one set of throw-away steps answers two questions: can it be done, and how long will it take
_thrown_away = partial(
    preflight,
    evidence=ThrowAwayEvidence,
    collect=_throw_away,
    collection="throw_away",
    served=True,
    reads_test=True,
)

# each has an evidence type of its own, matched with its check where it is declared
_DECLARED: tuple[Preflight[Any], ...] = (
    preflight("pins", evidence=pins.PinsEvidence, collect=_pins, kept=False)(pins.check),
    preflight(
        "baseline_correctness", evidence=baseline_correctness.BaselineEvidence, collect=_baseline
    )(baseline_correctness.check),
    preflight(
        "reference_correctness",
        evidence=reference_correctness.ReferenceEvidence,
        collect=_reference,
    )(reference_correctness.check),
    preflight("server_loss", evidence=server_loss.LossEvidence, collect=_loss, served=True)(
        server_loss.check
    ),
    preflight(
        "restoration", evidence=restoration.RestorationEvidence, collect=_restoration, served=True
    )(restoration.check),
    _thrown_away("capability")(capability.check),
    _thrown_away("feasibility")(feasibility.check),
    preflight("audit", evidence=audit.AuditEvidence, collect=_audit, reads_test=True)(audit.check),
    preflight("forecast", evidence=forecast.ForecastEvidence, collect=_forecast)(forecast.check),
)

PREFLIGHTS = {flight.name: flight for flight in _DECLARED}
"""The harness's own, which every experiment passes."""


def preflights_of(experiment: Experiment) -> dict[str, Preflight[Any]]:
    """What an experiment passes, in order: the harness's preflights, then its own."""
    own = experiment.components.own(Preflight)
    return {**PREFLIGHTS, **{name: own[name] for name in experiment.registration.preflights}}
