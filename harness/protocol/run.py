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

from harness.cards import Arm, Experiment, load_experiment, read_clusters
from harness.cards import Criterion as StatedCriterion
from harness.cards.registration import LossClient
from harness.checks import PREFLIGHTS, gates
from harness.checks.decided import (
    agreement_problems,
    joint_problems,
    outcome_problems,
    rows_mean,
    steps_mean,
)
from harness.checks.episode_report import episode_lines
from harness.checks.finding import Finding, GateFinding
from harness.checks.loss_clients import chosen_client
from harness.checks.server_loss import LossEvidence
from harness.checks.staleness_report import staleness_lines
from harness.decisions import (
    CombineRule,
    Criterion,
    Outcome,
    Unit,
    beside,
    decide,
    diagnostics,
    looks,
    settled,
)
from harness.decisions.beside import averaged, scores_by_seed
from harness.errors import RunError
from harness.names import BASE
from harness.protocol import preflights
from harness.protocol.arms import ArmKeeper
from harness.protocol.data import experiment_task, refuse_too_few_prompts, train_task
from harness.protocol.scores import item_scores, of_steps, step_mean
from harness.protocol.services import Service
from harness.protocol.stages import ArmSummary, BaseSummary, ExperimentRun
from harness.protocol.tuning import Tuner
from harness.store import RunStore, produce_all
from harness.tasks.sec_search.metrics import EVALUATED
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
        self.preflights: tuple[str, ...] = PREFLIGHTS
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
    def _context(self) -> preflights.Context:
        cards_dir = self._card_path.parent
        return preflights.Context(
            self.experiment, cards_dir, lambda: self._task, self._service, self._loss_client
        )

    @cached_property
    def _train_task(self) -> Task:
        return train_task(self._registered, self._runs_dir, self._data_dir)

    @cached_property
    def _train_context(self) -> preflights.Context:
        """What may be looked at before the tuning stage has chosen: no test split, no choice."""
        cards_dir, task = self._card_path.parent, lambda: self._train_task
        return preflights.Context(
            self._registered, cards_dir, task, self._service, self._loss_client
        )

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
            self._loss_client,
        )

    def preflight(self, id: str) -> Finding:
        """One preflight: its evidence is collected once and checked each time."""
        flight = preflights.PREFLIGHTS[id]
        context = self._context_of(flight)
        return flight.finding(self._document(flight, context), context.experiment)

    def _context_of(self, flight: preflights.Preflight[Any]) -> preflights.Context:
        """What a preflight may look at; one that reads the test split comes after tuning."""
        if self._registered.registration.tuning is None:
            return self._context
        if flight.reads_test:
            self._tune()
            return self._context
        return self._train_context

    def _document(
        self, flight: preflights.Preflight[Any], context: preflights.Context
    ) -> JsonValue:
        """A preflight's evidence, collected now unless it is kept."""
        if not flight.kept:
            return flight.document(context)
        entry = self._store.entry(f"preflight/{flight.name}", flight.parts(context))
        produce_all(
            [entry],
            lambda entry: entry.finish(flight.document(context)),
            run=self._run_id,
            retrain=self._retrain,
        )
        document: JsonValue = entry.summary()
        return document

    def _loss_client(self, arm: Arm) -> LossClient:
        """Who computes an arm's loss: the first that the registration allows and that works."""
        if len(arm.loss_clients) == 1:
            return arm.loss_clients[0]
        flight = preflights.PREFLIGHTS["server_loss"]
        document = self._document(flight, self._context_of(flight))
        return chosen_client(arm, LossEvidence.of(document).clients)

    def pilot(self) -> None:
        """The first steps of every arm, at the tuned learning rates if there is a tuning stage."""
        self._tune()
        self._arms.pilot()

    def gate(self, metric: str) -> GateFinding:
        """One activation gate, measured on the pilot's stored rollouts."""
        if metric not in self._gates:
            check = next(check for check in self.experiment.gates if check.metric == metric)
            pilot = self._arms.pilot_evidence()
            self._gates[metric] = gates.check_gate(check, pilot, self.experiment)
        return self._gates[metric]

    def pilot_notes(self) -> tuple[str, ...]:
        """Diagnostics of the pilot that decide nothing, such as B_eff."""
        return (*self._tuning_notes, *self._arms.pilot_notes())

    def train(self) -> None:
        """Every arm to its last step and every evaluation; a second look only if called for."""
        self._arms.train(1)
        if self._second_look():
            self._arms.train(2)

    def arm(self, name: str) -> ArmSummary:
        """What a trained arm did, counted from its stored steps."""
        arm = self.experiment.arm(name)
        return self._arms.summary(arm, called_for=arm.look == 1 or self._second_look())

    def base(self) -> BaseSummary:
        """The base model's evaluation."""
        rows = self._arms.rows(None)
        return BaseSummary(sum(rows.values()) / len(rows), len(rows))

    def outcome(self, criterion: str) -> Outcome:
        """The registered rule applied to one criterion, as it stands among all of them."""
        first = self._decided(1)
        second = self._decided(2) if self._second_look() else None
        outcome = first[criterion]
        if second is not None:
            outcome = looks.agreed(outcome, second[criterion])
        look = self.experiment.rule.second_look
        if problems := agreement_problems(look, first, second, outcome):
            raise RunError("\n".join(problems))
        return outcome

    def diagnostics(self) -> tuple[str, ...]:
        """Lines that were not used for the verdict."""
        taken = [1, 2] if self._second_look() else [1]
        trained = [arm for look in taken for arm in self.experiment.look(look)]
        lines: list[str] = []
        for look in taken:
            for stated in self.experiment.rule.criteria:
                criterion = self._criterion(stated)
                found = diagnostics.lines(
                    criterion,
                    self._scores(stated, look),
                    self._unit_ids(criterion),
                    clusters=self._clusters,
                )
                lines.extend(f"look {look}: {line}" if len(taken) > 1 else line for line in found)
            lines.extend(
                f"{stated.id} (supporting, decides nothing): {self._decide(stated, look).sentence}"
                for stated in self.experiment.registration.supporting
            )
        if self.experiment.lagged:
            for arm in trained:
                lines.extend(staleness_lines(arm, self._arms.figures(arm)))
                lines.extend(episode_lines(arm, self._arms.figures(arm)))
        lines.extend(self._beside(trained))
        lines.extend(self._score_lines(trained))
        lines.extend(self._arms.training_notes(trained))
        return tuple(lines)

    def attempts(self) -> int:
        """How many runs have started to train this experiment."""
        return self._arms.attempts()

    def close(self) -> None:
        """Release what this process holds."""
        self._service.close()

    def _criterion(self, stated: StatedCriterion) -> Criterion:
        return Criterion.from_card(stated, self.experiment.rule)

    def _tune(self) -> None:
        """Choose the learning rates, once: the arms, their keys and the test split come after.

        Raises:
            RunError: a preflight that needs no test split did not pass.
        """
        registered = self._registered
        if registered.registration.tuning is None or self.experiment is not registered:
            return
        for id in (id for id, flight in preflights.PREFLIGHTS.items() if not flight.reads_test):
            if not (finding := self.preflight(id)).ok:
                raise RunError(f"tuning is blocked by preflight {finding.problems[0]}")
        choice = Tuner(
            registered,
            self._store,
            self._service,
            self._train_task,
            self._run_id,
            self._retrain,
        ).choice()
        self._tuning_notes = choice.lines()
        self.experiment = replace(registered, learning_rates=choice.rates)
        for stale in ("_context", "_arms"):
            self.__dict__.pop(stale, None)

    def _second_look(self) -> bool:
        """Whether the rule has a second look and the first one calls for it."""
        look = self.experiment.rule.second_look
        return look is not None and looks.wanted(look, self._decided(1)[look.criterion])

    def _decided(self, look: int) -> dict[str, Outcome]:
        """All criteria on one look, as they stand together."""
        rule = self.experiment.rule
        outcomes = {stated.id: self._decide(stated, look) for stated in rule.criteria}
        premises = {criterion.id for criterion in rule.criteria if criterion.premise}
        steps = {c.id: c.next_step for c in rule.criteria if c.next_step is not None}
        together = settled(outcomes, premises, CombineRule(rule.combine), steps)
        if problems := joint_problems(rule, outcomes, together):
            raise RunError("\n".join(problems))
        return together

    def _decide(self, stated: StatedCriterion, look: int) -> Outcome:
        """One criterion by itself.

        Raises:
            RunError: what was decided does not follow from the stored results.
        """
        criterion = self._criterion(stated)
        scores, units = self._scores(stated, look), self._unit_ids(criterion)
        outcome = decide(criterion, scores, units, clusters=self._clusters)
        means = {role: self._arm_means(stated, role, look) for role in stated.weights}
        if problems := outcome_problems(self.experiment.rule, stated, outcome, means):
            raise RunError("\n".join(problems))
        return outcome

    def _arm_means(self, stated: StatedCriterion, role: str, look: int) -> list[float]:
        """The mean score of each arm of a role, straight from rows or steps."""
        arms = self.experiment.role(role, look)
        if of_steps(stated.metric):
            first, last = stated.steps or (0, self.experiment.card.steps - 1)
            return [steps_mean(self._arms.figures(a), stated.metric, first, last) for a in arms]
        policies = [None] if role == BASE else arms
        return [rows_mean(self._arms.item_rows(policy), stated.metric) for policy in policies]

    def _scores(self, stated: StatedCriterion, look: int) -> Mapping[str, Mapping[str, float]]:
        """Scores by role: of items, averaged over a role's seeds, or of seeds.

        Raises:
            RunError: rows or steps are missing.
            StatisticsError: an item has fewer samples than its metric needs.
        """
        arms = {role: self.experiment.role(role, look) for role in stated.weights if role != BASE}
        if of_steps(stated.metric):
            first, last = stated.steps or (0, self.experiment.card.steps - 1)
            return {
                role: {
                    str(arm.seed): step_mean(
                        f"arm {arm.name}", self._arms.figures(arm), stated.metric, first, last
                    )
                    for arm in of_role
                }
                for role, of_role in arms.items()
            }

        def scored(arm: Arm | None) -> dict[str, float]:
            return item_scores(self._arms.item_rows(arm), stated.metric)

        base = scored(None)
        by_role = {role: {arm.seed: scored(arm) for arm in found} for role, found in arms.items()}
        if self._criterion(stated).unit == Unit.SEEDS:
            return scores_by_seed(by_role, base)
        return {role: averaged(list(of.values())) for role, of in by_role.items()} | {BASE: base}

    def _beside(self, trained: Sequence[Arm]) -> list[str]:
        """What seeds and ablations say beside the verdict."""
        by_role: dict[str, dict[int, Mapping[str, float]]] = {}
        for arm in trained:
            by_role.setdefault(arm.role, {})[arm.seed] = self._arms.rows(arm)
        stated = [c for c in self.experiment.rule.criteria if not of_steps(c.metric)]
        criteria = [self._criterion(criterion) for criterion in stated]
        weighed, base = self.experiment.weighed_roles, self._arms.rows(None)
        lines = [line for c in criteria for line in beside.seed_lines(c, by_role, base)]
        for role in by_role.keys() - set(weighed):
            lines += beside.ablation_lines(role, weighed, by_role, self.experiment.rule.alpha)
        return lines

    def _score_lines(self, trained: Sequence[Arm]) -> list[str]:
        """The scores of every evaluation, where an item has more than one."""
        spec, lines = self.experiment.registration.evaluation, list[str]()
        if spec.answer != "curated_set":
            return lines
        best = [f"{name}_best_of_{spec.samples}" for name in EVALUATED if spec.samples > 1]
        for arm in (None, *trained):
            rows = self._arms.item_rows(arm)
            scores = {metric: item_scores(rows, metric) for metric in (*EVALUATED, *best)}
            name = BASE if arm is None else arm.name
            lines.append(beside.score_line(name, scores, self.experiment.rule.alpha))
        return lines

    def _unit_ids(self, criterion: Criterion) -> Sequence[str]:
        """What is counted: the registered items, or the registered seeds."""
        if criterion.unit == Unit.SEEDS:
            return [str(seed) for seed in criterion.seeds]
        return [problem.id for problem in self._task.test]

    @cached_property
    def _clusters(self) -> Mapping[str, str | int] | None:
        pinned = self.experiment.rule.clusters
        return None if pinned is None else read_clusters(self._card_path.parent, pinned)
