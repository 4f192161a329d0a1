"""Pilot, training and evaluation of all arms, each produced once whatever the number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.audit.executed import execution_problems
from harness.audit.lag import lag_problems
from harness.audit.pilot import Pilot
from harness.audit.requests import record_problems, scored_problems
from harness.audit.scored import policy_problems, row_problems
from harness.audit.staleness_report import ramp_lines
from harness.audit.weights import indistinct_weights
from harness.cards import Arm, Experiment
from harness.cards.registration import LossBackend
from harness.errors import RunError
from harness.protocol.budget import Clock, read_clock, refuse_overspending, wall_seconds
from harness.protocol.progress import LiveLine
from harness.protocol.scores import item_scores
from harness.protocol.services import Service
from harness.protocol.stages import ArmSummary
from harness.records import Checkpoint, Row, StepFigures, StepRecord
from harness.store import Entry, RunStore, produce_all
from harness.tasks.task import Task
from harness.training.identity import arm_parts, base_parts, evaluation_parts
from harness.training.step_metrics import beff_note, gap_note, training_note

if TYPE_CHECKING:
    import tinker

    from harness.training.context import ArmContext, ArmState

ITEMS_A_TICK = 64
"""Evaluated items between two looks at the clock and the cap."""


@dataclass(frozen=True)
class TrainedArm:
    """What is kept of a trained arm when its records were read and checked: no tokens."""

    figures: list[StepFigures]
    rollouts: int
    notes: list[str]


@dataclass
class ArmKeeper:
    """The arms of one experiment: entries in the store, live clients in this process."""

    experiment: Experiment
    store: RunStore
    service: Service
    task: Callable[[], Task]
    runs_dir: Path
    run_id: str
    retrain: bool
    loss_backend: Callable[[Arm], LossBackend]
    _pilot: Pilot | None = None
    _trained: dict[str, TrainedArm] = field(default_factory=dict)
    _rows: dict[str, list[Row]] = field(default_factory=dict)
    _states: dict[str, ArmState] = field(default_factory=dict)

    def pilot(self) -> None:
        """Take every arm of the first look to the end of its pilot, unless it is there."""
        steps = self.experiment.registration.training.pilot_steps
        arms = self.experiment.look(1)
        entries = {self.entry(arm).key: arm for arm in arms}
        produce_all(
            [self.entry(arm) for arm in arms],
            lambda entry: self._advance(entries[entry.key], steps),
            run=self.run_id,
            done=lambda entry: _piloted(entry, steps),
            retrain=self.retrain,
        )

    def train(self, look: int = 1) -> None:
        """Take every arm of a look to its end and evaluate it, and evaluate the base model.

        A worker that takes an evaluation trains its arm first, so two workers train two arms.

        Raises:
            RunError: the pilot did something else than registered; nothing more is trained.
        """
        if look == 1:
            for arm in self.experiment.look(1):
                self._refuse_unregistered(arm, self.pilot_evidence()[arm.name])
        policies: list[Arm | None] = [*self.experiment.look(look), None]
        evaluations = {self.evaluation_entry(arm).key: arm for arm in policies}
        produce_all(
            [self.evaluation_entry(arm) for arm in policies],
            lambda entry: self._evaluate(entry, evaluations[entry.key]),
            run=self.run_id,
            retrain=self.retrain,
        )

    def is_evaluated(self, look: int) -> bool:
        """Whether every policy of a look has its rows, so that nothing has to be trained."""
        policies: list[Arm | None] = [*self.experiment.look(look), None]
        return all(self.evaluation_entry(arm).is_complete for arm in policies)

    def pilot_evidence(self) -> Pilot:
        """What the pilot executed: the stored records of every arm's first steps, read once."""
        if self._pilot is None:
            steps = self.experiment.registration.training.pilot_steps
            self._pilot = {a.name: _records(self.entry(a), steps) for a in self.experiment.look(1)}
        return self._pilot

    def pilot_notes(self) -> tuple[str, ...]:
        """B_eff of uniform and kernel baselines; how stale lagged arms were, the ramp apart.

        Without lag, how far sampler and learner are apart.
        """
        arms, pilot = self.experiment.look(1), self.pilot_evidence()
        if self.experiment.lagged:
            notes = [line for arm in arms for line in ramp_lines(arm, pilot)]
        else:  # lagged experiments have gates on it
            notes = [gap_note(name, records) for name, records in pilot.items()]
        notes += [
            beff_note(arm.name, pilot[arm.name])
            for arm in arms
            if arm.declared.kernel == "registered"
        ]
        return tuple(notes)

    def training_notes(self, arms: Sequence[Arm]) -> tuple[str, ...]:
        """What trained arms logged a step, and which of their weights were indistinct."""
        return tuple(note for arm in arms for note in self._trained_arm(arm).notes)

    def summary(self, arm: Arm, *, called_for: bool = True) -> ArmSummary:
        """What an arm did, counted from its stored steps; one not called for plans none."""
        entry, evaluation = self.entry(arm), self.evaluation_entry(arm)
        if not called_for:
            steps = [entry.read_step(step) for step in entry.steps()]
            done = [record for record in steps if record is not None]
            return ArmSummary(arm.name, len(done), _rollouts(done), 0, 0, None, 0, 0.0, math.nan)
        trained = self._trained_arm(arm) if entry.is_complete else TrainedArm([], 0, [])
        rows = self.rows(arm) if evaluation.is_complete else {}
        return ArmSummary(
            name=arm.name,
            steps=len(trained.figures),
            rollouts=trained.rollouts,
            planned_steps=arm.steps,
            planned_rollouts=arm.steps * arm.rollouts_per_step,
            accuracy=sum(rows.values()) / len(rows) if rows else None,
            n_items=len(rows),
            wall_seconds=wall_seconds([*read_clock(entry), *read_clock(evaluation)]),
            final_reward=trained.figures[-1]["metrics"]["reward"] if trained.figures else math.nan,
        )

    def rows(self, arm: Arm | None) -> dict[str, float]:
        """The headline score by item id of an evaluated arm, or of the base model (None)."""
        return item_scores(self.item_rows(arm), self.task().headline)

    def item_rows(self, arm: Arm | None) -> list[Row]:
        """The rows of an evaluated arm, or of the base model (None), read and checked once.

        Raises:
            RunError: they can't be read, contradict their items, or are of other weights.
        """
        entry = self.evaluation_entry(arm)
        if entry.key in self._rows:
            return self._rows[entry.key]
        rows: list[Row] | None = entry.read("rows")
        if rows is None:
            raise RunError(f"{entry.name}: its rows can't be read; run again, it evaluates anew")
        name = entry.name.partition("/")[2]
        problems = row_problems(name, rows, self.task().test, self.experiment.registration)
        scored, trained = entry.summary(), self.entry(arm).summary() if arm else None
        problems += scored_problems(name, rows, scored, self.experiment, trained)
        if trained is not None:
            first = self.entry(arm).read_step(0) if arm else None
            problems += policy_problems(name, trained, scored, first)
        if problems:
            raise RunError("\n".join(problems))
        self._rows[entry.key] = rows
        return rows

    def figures(self, arm: Arm) -> list[StepFigures]:
        """The metrics of every step of a trained arm.

        Raises:
            RunError: a step is missing, is not as registered, or sampled from other weights.
        """
        return self._trained_arm(arm).figures

    def attempts(self) -> int:
        """How many runs have started to train an arm of this experiment."""
        return len({a.run for arm in self.experiment.arms for a in self.entry(arm).attempts()})

    def entry(self, arm: Arm) -> Entry:
        """Where an arm's steps are kept."""
        return self.store.entry(f"arm/{arm.name}", self._arm_parts(arm))

    def evaluation_entry(self, arm: Arm | None) -> Entry:
        """Where the rows of an arm, or of the base model, are kept."""
        if arm is None:
            policy = base_parts(self.experiment, self.service.identity())
        else:
            policy = self._arm_parts(arm)
        name = "base" if arm is None else arm.name
        parts = evaluation_parts(self.experiment, policy)
        return self.store.entry(f"evaluation/{name}", parts)

    def _arm_parts(self, arm: Arm) -> dict[str, object]:
        return arm_parts(self.experiment, arm, self.service.identity())

    def _advance(self, arm: Arm, steps: int) -> None:
        """Train an arm up to `steps` updates. The entry's lock is held.

        Raises:
            RunError: a step that the checkpoint counts has no record.
        """
        from harness.training.loop import train_until

        entry = self.entry(arm)
        _refuse_missing(entry, set(range(_updates(entry))) - set(entry.steps()))
        clock = Clock(entry)
        live = LiveLine(self.runs_dir, self.experiment, arm.name, "training", arm.steps)

        def after_step(record: StepRecord) -> None:
            clock.tick()
            live.step(record)

        state = self._states.pop(arm.name, None)
        if state is not None and state.version != _updates(entry):
            state = None  # another process took the arm further
        context = self._context(arm, after_step)
        self._states[arm.name] = self.service.run(train_until(context, state, steps))

    def _finish(self, arm: Arm) -> None:
        """Train an arm to its end and keep its final sampler. The entry's lock is held."""
        from harness.training.checkpoints import delete_checkpoints

        self._advance(arm, arm.steps)
        entry, state = self.entry(arm), self._states.pop(arm.name)
        entry.finish(self.service.run(_save_sampler(state.client, self._fingerprint_text())))
        self.service.run(delete_checkpoints(self.service.client(), entry, state))

    def _evaluate(self, entry: Entry, arm: Arm | None) -> None:
        """Evaluate one policy, trained first if need be. The evaluation's lock is held."""
        from harness.audit.tracing import trace_evaluation
        from harness.training.evaluate import evaluate
        from harness.training.fingerprints import sampler_fingerprint
        from harness.training.gather import gather
        from harness.training.recording_proxy import RecordingProxy

        base_model = path = None
        if arm is None:
            base_model = self.experiment.card.base_model
        else:
            produce_all(
                [self.entry(arm)],
                lambda _: self._finish(arm),
                run=self.run_id,
                retrain=self.retrain,  # clears nothing that a pilot of this run has made
            )
            path = self.entry(arm).summary()["sampler_path"]
        self._refuse_overspending()
        clock, items = Clock(entry), self.task().test
        name = "base model" if arm is None else arm.name
        proxy, adapter = (
            RecordingProxy(self.service.client()),
            self.service.adapter(self.task()),
        )
        spec = self.experiment.registration.evaluation
        rows_planned = len(items) * (spec.samples if adapter.multi_turn else 1)
        live = LiveLine(self.runs_dir, self.experiment, name, "evaluation", rows_planned)
        done: list[Row] = []

        def after_item(row: Row) -> None:
            done.append(row)
            if len(done) % ITEMS_A_TICK == 0:
                live.items(done)
                clock.tick()
                self._refuse_overspending()

        text, noted = self._fingerprint_text(), dict[str, object]()

        async def decode() -> list[Row]:
            sampler = await proxy.client().create_sampling_client_async(path, base_model)
            evaluation = evaluate(sampler, adapter, spec, items, after_item)
            reading = sampler_fingerprint(sampler, text)
            rows, noted["fingerprint"] = await gather(evaluation, reading)
            trace = await trace_evaluation(proxy.take(), rows, items, adapter, spec)
            noted["trace"] = trace.plain()
            return rows

        rows = self.service.run(decode())
        live.items(rows)
        clock.tick()
        entry.publish("rows", rows)
        scores = item_scores(rows, self.task().headline)
        entry.finish({"accuracy": sum(scores.values()) / len(scores), **noted})

    def _context(self, arm: Arm, after_step: Callable[[StepRecord], None]) -> ArmContext:
        from harness.audit.tracing import step_tracer
        from harness.training.context import arm_context

        task = self.task()
        adapter = self.service.adapter(task)
        return arm_context(
            self.experiment,
            arm,
            task,
            self.service.client(),
            adapter,
            self.entry(arm),
            before_step=self._refuse_overspending,
            after_step=after_step,
            tracer=step_tracer(self.experiment, adapter),
            loss_backend=self.loss_backend(arm),
        )

    def _fingerprint_text(self) -> list[int]:
        """The fixed text by whose log-probs weights are distinguished."""
        task = self.task()
        return self.service.adapter(task).text(task.train[0])

    def _trained_arm(self, arm: Arm) -> TrainedArm:
        """A trained arm's records, read and checked once.

        Raises:
            RunError: a step is missing, is not as registered, or sampled from other weights.
        """
        entry = self.entry(arm)
        if entry.key not in self._trained:
            records = _records(entry, arm.steps)
            if self.experiment.lagged and (stale := lag_problems(arm, records)):
                raise RunError("\n".join(stale))
            self._refuse_unregistered(arm, records)
            last = entry.summary().get("fingerprint")
            self._trained[entry.key] = TrainedArm(
                figures=[StepFigures(step=r["step"], metrics=r["metrics"]) for r in records],
                rollouts=_rollouts(records),
                notes=[
                    training_note(arm.name, records),
                    *indistinct_weights(arm.name, records, last),
                ],
            )
        return self._trained[entry.key]

    def _refuse_unregistered(self, arm: Arm, records: Sequence[StepRecord]) -> None:
        problems = [
            *execution_problems(self.experiment, arm, records, self.task().train),
            *record_problems(
                records, arm, self.experiment, self.task().train, self.loss_backend(arm)
            ),
        ]
        if problems:
            raise RunError("\n".join(problems))

    def _refuse_overspending(self) -> None:
        entries = [self.entry(arm) for arm in self.experiment.arms]
        entries += [self.evaluation_entry(arm) for arm in (*self.experiment.arms, None)]
        refuse_overspending(self.experiment.card.budget, entries)


async def _save_sampler(client: tinker.TrainingClient, text: Sequence[int]) -> dict[str, object]:
    """The path of the final sampler, and the fingerprint of the weights that it must hold."""
    from harness.training.fingerprints import learner_fingerprint

    sent = await client.save_weights_for_sampler_async("final")
    learned = await learner_fingerprint(client, text)
    return {"sampler_path": (await sent.result_async()).path, "fingerprint": learned}


def _updates(entry: Entry) -> int:
    """How many updates an arm can go on from, as its checkpoint says."""
    checkpoint: Checkpoint | None = entry.read("checkpoint")
    return 0 if checkpoint is None else checkpoint["version"]


def _piloted(entry: Entry, steps: int) -> bool:
    """Whether the pilot's records are there and the arm can go on from its end."""
    return _updates(entry) >= steps and set(range(steps)) <= set(entry.steps())


def _records(entry: Entry, steps: int) -> list[StepRecord]:
    """The first `steps` records.

    Raises:
        RunError: one of them is missing; a smaller number would be counted otherwise.
    """
    records = {step: entry.read_step(step) for step in range(steps)}
    _refuse_missing(entry, {step for step, record in records.items() if record is None})
    return list(records.values())


def _rollouts(records: Sequence[StepRecord]) -> int:
    return sum(len(group["rollouts"]) for record in records for group in record["groups"])


def _refuse_missing(entry: Entry, steps: set[int]) -> None:
    if steps:
        raise RunError(
            f"{entry.name}: steps {sorted(steps)} have no readable record; run again with --retrain"
        )
