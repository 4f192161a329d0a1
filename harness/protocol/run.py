"""One experiment, taken from preflight to verdict: every stage is produced once and kept."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from harness.audit import gates, preflight_ids
from harness.audit.finding import Finding, GateFinding
from harness.audit.loss_backends import chosen_backend
from harness.audit.server_loss import LossEvidence
from harness.cards import Arm, Experiment, load_experiment
from harness.cards.registration import LossBackend
from harness.decisions import Decision
from harness.errors import HarnessError, RunError
from harness.protocol import preflights
from harness.protocol.arms import ArmKeeper
from harness.protocol.data import experiment_task, refuse_too_few_prompts, train_task
from harness.protocol.decider import Decider
from harness.protocol.preflight import Context, Preflight
from harness.protocol.registered import Registered
from harness.protocol.scores import of_steps
from harness.protocol.services import Service
from harness.protocol.stages import ArmSummary, BaseSummary, ExperimentRun
from harness.protocol.tuning import Tuner
from harness.records import StepRecord
from harness.store import RunStore, produce_all
from harness.tasks.task import Task

_PROCESS = uuid.uuid4().hex


def open_run(
    card_path: Path,
    *,
    scale: str,
    runs_dir: Path,
    retrain: bool,
    data_dir: Path | None,
    controller_pid: int,
    worker: str,
) -> ExperimentRun:
    """Open a card's run; nothing is produced, and no service is asked, until a stage is.

    Args:
        card_path: the card's JSON file.
        scale: `embedded`, `full`, or the path of a scale file.
        runs_dir: the folder of the run store.
        retrain: train again what earlier runs have stored.
        data_dir: the folder with the GSM8K files, for scales that use them.
        controller_pid: the process whose end ends the embedded engine.
        worker: `main`, or the name of an xdist worker; its workers share one run.

    Raises:
        CardError: card, registration or scale can't be read or do not fit together.
        ServiceRefused: TINKER_BASE_URL is set, but can't be used.
        StoreError: the run store can't be opened.
    """
    experiment = load_experiment(card_path, scale)
    # xdist names each run for its workers; without workers a run is its process
    name = _PROCESS if worker == "main" else os.environ["PYTEST_XDIST_TESTRUNUID"]
    run_id = f"{name}-{controller_pid}"
    return CardRun(experiment, card_path, runs_dir, retrain, data_dir, controller_pid, run_id)


class CardRun:
    """The protocol of a card at a scale, over one run store."""

    def __init__(
        self,
        experiment: Experiment,
        card_path: Path,
        runs_dir: Path,
        retrain: bool,
        data_dir: Path | None,
        controller_pid: int,
        run_id: str,
    ) -> None:
        self.experiment = self._registered = experiment
        self._tuning_notes: tuple[str, ...] = ()
        self.preflights: tuple[str, ...] = preflight_ids(experiment)
        self.gates = tuple(check.metric for check in experiment.gates)
        self.criteria = tuple(criterion.id for criterion in experiment.rule.criteria)
        self._card_path = card_path
        self._runs_dir = runs_dir
        self._data_dir = data_dir
        self._run_id = run_id
        self._store = RunStore(runs_dir)
        self._service = Service(experiment, runs_dir, controller_pid)
        self._retrain = retrain
        self._gates: dict[str, GateFinding] = {}

    @cached_property
    def _task(self) -> Task:
        task = experiment_task(self.experiment, self._runs_dir, self._data_dir)
        refuse_too_few_prompts(self.experiment, task)
        return task

    @cached_property
    def _context(self) -> Context:
        cards_dir = self._card_path.parent
        return Context(
            self.experiment, cards_dir, lambda: self._task, self._service, self._loss_backend
        )

    @cached_property
    def _train_task(self) -> Task:
        return train_task(self._registered, self._runs_dir, self._data_dir)

    @cached_property
    def _train_context(self) -> Context:
        """What may be looked at before the tuning stage has chosen: no test split, no choice."""
        cards_dir, task = self._card_path.parent, lambda: self._train_task
        return Context(self._registered, cards_dir, task, self._service, self._loss_backend)

    @cached_property
    def _arms(self) -> ArmKeeper:
        return ArmKeeper(
            self.experiment,
            self._store,
            self._service,
            lambda: self._task,
            self._runs_dir,
            self._run_id,
            self._retrain,
            self._loss_backend,
        )

    @cached_property
    def _decider(self) -> Decider:
        return Decider(self.experiment, self._arms, self._card_path.parent)

    @property
    def service(self) -> Service:
        """Who trains."""
        return self._service

    @cached_property
    def _binding(self) -> Registered:
        return Registered(self._registered, self._store.root)

    def preflight(self, id: str) -> Finding:
        """One preflight: its evidence is collected once and checked each time."""
        flight = preflights.preflights_of(self.experiment)[id]
        context = self._context_of(flight)
        try:
            return flight.finding(self._document(flight, context), context.experiment)
        except HarnessError:
            raise
        except Exception as error:
            if id in preflights.PREFLIGHTS:
                raise
            raise RunError(
                f"preflight {id} raised {type(error).__name__} ({error}); correct {flight.home}"
            ) from error

    def _context_of(self, flight: Preflight[Any]) -> Context:
        """What a preflight may look at; one that reads the test split comes after tuning."""
        if self._registered.registration.tuning is None:
            return self._context
        if flight.reads_test:
            self._tune()
            return self._context
        return self._train_context

    def _document(self, flight: Preflight[Any], context: Context) -> JsonValue:
        """A preflight's evidence, collected now unless it is kept."""
        if not flight.kept:
            return flight.document(context)
        entry = self._store.entry(f"preflight/{flight.collection}", flight.parts(context))
        produce_all(
            [entry],
            lambda entry: entry.finish(flight.document(context)),
            run=self._run_id,
            retrain=self._retrain,
        )
        document: JsonValue = entry.summary()
        return document

    def _loss_backend(self, arm: Arm) -> LossBackend:
        """Who computes an arm's loss: the first that the registration allows and that works."""
        if len(arm.loss_backends) == 1:
            return arm.loss_backends[0]
        flight = preflights.PREFLIGHTS["server_loss"]
        document = self._document(flight, self._context_of(flight))
        return chosen_backend(arm, LossEvidence.of(document).clients)

    def pilot(self) -> Mapping[str, Sequence[StepRecord]]:
        """The first steps of every arm, at the tuned learning rates if there is a tuning stage."""
        self._binding.bind()
        if self._retrain:
            self._binding.refuse_beyond(self._run_id)
        self._tune()
        self._arms.pilot()
        self._refuse_unmeasured()
        return self._arms.pilot_evidence()

    def _refuse_unmeasured(self) -> None:
        """A criterion of training steps must name what the steps measure, before all are taken.

        Raises:
            RunError: no step of the pilot has its figure.
        """
        steps = [record for of in self._arms.pilot_evidence().values() for record in of]
        measured = {name for record in steps for name in record["metrics"]}
        for stated in (*self.experiment.rule.criteria, *self.experiment.registration.supporting):
            if of_steps(stated.metric) and stated.metric not in measured:
                room = stated.metric.partition("/")[0]
                like = sorted(name for name in measured if name.startswith(f"{room}/"))
                raise RunError(
                    f"criterion {stated.id}: no step measures {stated.metric}; register one of "
                    f"{', '.join(like or sorted(measured))}"
                )

    def gate(self, metric: str) -> GateFinding:
        """One activation gate, measured on the pilot's stored rollouts."""
        if metric not in self._gates:
            check = next(check for check in self.experiment.gates if check.metric == metric)
            pilot = self._arms.pilot_evidence()
            texts = [item.question for item in self._task.train]
            self._gates[metric] = gates.check_gate(check, pilot, self.experiment, texts)
        return self._gates[metric]

    def pilot_notes(self) -> tuple[str, ...]:
        """Diagnostics of the pilot that decide nothing, such as B_eff."""
        return (*self._tuning_notes, *self._arms.pilot_notes())

    def train(self) -> None:
        """Every arm to its last step and every evaluation; a second look only if called for."""
        self._binding.attempt(
            self._run_id, redrawn=self._retrain, trained=self._arms.is_evaluated(1)
        )
        self._arms.train(1)
        if self._decider.second_look():
            self._arms.train(2)

    def arm(self, name: str) -> ArmSummary:
        """What a trained arm did, counted from its stored steps."""
        arm = self.experiment.arm(name)
        return self._arms.summary(arm, called_for=arm.look == 1 or self._decider.second_look())

    def rows(self) -> Mapping[str, Mapping[str, float]]:
        """The scores of the base model and of every arm that was trained, by item."""
        second = self._decider.second_look()
        arms = [arm for arm in self.experiment.arms if arm.look == 1 or second]
        return {"base": self._arms.rows(None)} | {arm.name: self._arms.rows(arm) for arm in arms}

    def base(self) -> BaseSummary:
        """The base model's evaluation."""
        rows = self._arms.rows(None)
        return BaseSummary(sum(rows.values()) / len(rows), len(rows))

    def decision(self) -> Decision:
        """The experiment's verdict, with every criterion as it stands in it."""
        return self._binding.decided(self._decider.decision())

    def diagnostics(self) -> tuple[str, ...]:
        """Lines that were not used for the verdict."""
        return self._decider.lines()

    def attempts(self) -> int:
        """How many runs have started to train this experiment."""
        return self._arms.attempts()

    def close(self) -> None:
        """Release what this process holds."""
        self._service.close()

    def _tune(self) -> None:
        """Choose the learning rates, once: the arms, their keys and the test split come after.

        Raises:
            RunError: a preflight that needs no test split did not pass.
        """
        registered = self._registered
        if registered.registration.tuning is None or self.experiment is not registered:
            return
        flights = preflights.preflights_of(registered)
        for id in (id for id, flight in flights.items() if not flight.reads_test):
            if not (finding := self.preflight(id)).ok:
                raise RunError(f"tuning is blocked by preflight {finding.problems[0]}")
        choice = Tuner(
            registered,
            self._store,
            self._service,
            self._train_task,
            self._run_id,
            self._retrain,
            self._loss_backend,
        ).choice()
        self._tuning_notes = choice.lines()
        self.experiment = replace(registered, learning_rates=choice.rates)
        for stale in ("_context", "_arms", "_decider"):
            self.__dict__.pop(stale, None)
