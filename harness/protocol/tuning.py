"""The tuning stage: a learning rate for each role, chosen on a held-out slice of the train split.

It is given the train split alone, so nothing of the test split can reach the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.audit.requests import evaluation_problems, record_problems
from harness.cards import Arm, Experiment
from harness.cards.registration import LossBackend, Tuning
from harness.errors import BudgetExceeded, RunError
from harness.methods.tuning import best_rate, edge_rates
from harness.protocol.budget import Clock, read_clock, wall_seconds
from harness.protocol.progress import LiveLine
from harness.protocol.scores import item_scores
from harness.protocol.services import Service
from harness.records import Row, StepRecord
from harness.store import Entry, RunStore, produce_all
from harness.tasks.task import Item, Task
from harness.traces import StepTrace
from harness.training.identity import trial_parts
from harness.training.streams import data_order

if TYPE_CHECKING:
    from harness.training.context import ArmContext, ArmState

TIMED_ITEMS = 32


@dataclass(frozen=True)
class Choice:
    """What the stage chose, and what it cost.

    `curves` is held-out accuracy by learning rate and role. `predicted_seconds` is of the first
    grid, trials one after another; `measured_seconds` is the wall time of all trials.
    """

    rates: dict[str, float]
    curves: dict[str, dict[float, float]]
    at_edge: tuple[str, ...]
    heldout: int
    steps: int
    arm_steps: int
    trials: int
    first_trials: int
    predicted_seconds: float
    measured_seconds: float

    def lines(self) -> tuple[str, ...]:
        """Choice, curves and cost, for the report."""
        text = []
        for role, curve in self.curves.items():
            points = ", ".join(f"{rate:.3g}: {curve[rate]:.4f}" for rate in sorted(curve))
            edge = " AT AN EDGE of the grid, which may grow no further" * (role in self.at_edge)
            text.append(
                f"tuning {role}: learning rate {self.rates[role]:.3g}{edge}; accuracy on "
                f"{self.heldout} held-out train prompts {points}"
            )
        if self.steps < self.arm_steps:
            text.append(
                f"tuning: trials took {self.steps} of the arms' {self.arm_steps} steps; the rate "
                "that is best early need not be best at the end"
            )
        return (
            *text,
            f"tuning cost: {self.predicted_seconds:.3g} s predicted for {self.first_trials} "
            f"trials one after another, {self.measured_seconds:.3g} s measured for {self.trials}",
        )


@dataclass
class Tuner:
    """The trials of one experiment: each trained and scored once, whatever the number of workers.

    `task` holds the train split; its test split is empty. `loss_backend` says who was chosen to
    compute an arm's loss.
    """

    experiment: Experiment
    store: RunStore
    service: Service
    task: Task
    run_id: str
    retrain: bool
    loss_backend: Callable[[Arm], LossBackend]

    def choice(self) -> Choice:
        """Try the grid, extend it while a best rate sits at its edge, and choose.

        Raises:
            BudgetExceeded: the predicted time of the first grid is above the registered one.
            RunError: a trial broke.
        """
        predicted, rates = self._predicted_seconds(), list(self._spec.learning_rates)
        cap = self._spec.max_wall_minutes
        if predicted > cap * 60:
            raise BudgetExceeded(
                f"tuning: {predicted / 60:.1f} min predicted for the first grid, "
                f"{cap:g} registered; use a faster service, or register fewer or shorter trials"
            )
        first = len(rates) * len(self._arms)
        curves = self._curves(rates)
        for _ in range(self._spec.max_extensions):
            further = edge_rates(curves, self._spec.factor)
            if not further:
                break
            rates += further
            curves = self._curves(rates)
        best = {role: best_rate(curve) for role, curve in curves.items()}
        entries = [self.entry(arm, rate) for arm in self._arms for rate in rates]
        return Choice(
            rates=best,
            curves=curves,
            at_edge=tuple(role for role, r in best.items() if r in (min(rates), max(rates))),
            heldout=self._spec.heldout,
            steps=self._spec.steps,
            arm_steps=max(arm.steps for arm in self._arms),
            trials=len(entries),
            first_trials=first,
            predicted_seconds=predicted,
            measured_seconds=wall_seconds(i for entry in entries for i in read_clock(entry)),
        )

    @property
    def _spec(self) -> Tuning:
        spec = self.experiment.registration.tuning
        assert spec is not None, "a tuner is made for experiments with a tuning stage"
        return spec

    @property
    def _arms(self) -> list[Arm]:
        """One arm of each role, the first registered; trials take its seed."""
        first = {arm.role: arm for arm in reversed(self.experiment.look(1))}
        return [arm for arm in self.experiment.look(1) if first[arm.role] is arm]

    @property
    def _heldout(self) -> list[Item]:
        seed = self.experiment.registration.training.data_order_seed
        order = data_order(seed, len(self.task.train))
        return [self.task.train[index] for index in order[-self._spec.heldout :]]

    def _curves(self, rates: Sequence[float]) -> dict[str, dict[float, float]]:
        trials = {self.entry(arm, rate).key: (arm, rate) for arm in self._arms for rate in rates}
        produce_all(
            [self.entry(arm, rate) for arm, rate in trials.values()],
            lambda entry: self._try(entry, *trials[entry.key]),
            run=self.run_id,
            retrain=self.retrain,
        )
        return {
            arm.role: {rate: self.entry(arm, rate).summary()["accuracy"] for rate in rates}
            for arm in self._arms
        }

    def _trial(self, arm: Arm, rate: float) -> Arm:
        return replace(arm, learning_rate=rate, steps=self._spec.steps)

    def entry(self, arm: Arm, rate: float) -> Entry:
        """Keyed as an arm and its evaluation are, on the held-out slice instead of the test."""
        trial, identity = self._trial(arm, rate), self.service.identity()
        parts = trial_parts(self.experiment, trial, self._spec.heldout, identity)
        return self.store.entry(f"tuning/{arm.name}", parts)

    def _try(self, entry: Entry, arm: Arm, rate: float) -> None:
        """Train one trial from the start and score it. The entry's lock is held.

        Raises:
            RunError: what was sent for it is not what is registered.
        """
        from harness.audit.tracing import trace_evaluation
        from harness.training.checkpoints import delete_checkpoints
        from harness.training.loop import train_until

        clock, name = Clock(entry), f"{arm.name} at {rate:.3g}"
        live = LiveLine(self.store.root, self.experiment, name, "tuning", self._spec.steps)

        def after_step(record: StepRecord) -> None:
            clock.tick()
            live.step(record)

        trial = self._trial(arm, rate)
        context = self._context(entry, trial, after_step)
        state = self.service.run(train_until(context, None, self._spec.steps))
        rows = self._score(context, state, self._heldout)
        clock.tick()
        records = [entry.read_step(step) for step in range(trial.steps)]
        spec, backend = self.experiment.registration.evaluation, self.loss_backend(arm)
        seen = state.proxy.take()
        scored = self.service.run(
            trace_evaluation(seen, rows, self._heldout, context.adapter, spec)
        )
        updates = sum(StepTrace.of(record["trace"]).updates for record in records)
        problems = [
            *record_problems(records, trial, self.experiment, self.task.train, backend),
            *evaluation_problems(scored, self.experiment, f"tuning {name}:", updates),
        ]
        if problems:
            raise RunError("\n".join(problems))
        entry.publish("rows", rows)
        scores = item_scores(rows, self.task.headline)
        accuracy = sum(scores.values()) / len(scores)
        entry.finish({"accuracy": accuracy, "learning_rate": rate})
        self.service.run(delete_checkpoints(context.service, entry, state))

    def _predicted_seconds(self) -> float:
        """The first grid's time, from one throw-away step of each arm and a few scored items.

        Measured once an experiment and kept, so that a finished stage reports what it predicted.
        """
        identity = self.service.identity()
        parts = {"experiment": self.experiment.sha256, "service": identity}
        entry = self.store.entry("tuning/forecast", parts)
        produce_all(
            [entry],
            lambda entry: entry.finish({"seconds": self._measure()}),
            run=self.run_id,
            retrain=self.retrain,
        )
        seconds: float = entry.summary()["seconds"]
        return seconds

    def _measure(self) -> float:
        from harness.audit.probes.arms import throw_away_arms
        from harness.training.checkpoints import delete_checkpoints, open_arm
        from harness.training.loop import run_step

        client, adapter = self.service.client(), self.service.adapter(self.task)
        losses = {arm.name: self.loss_backend(arm) for arm in self.experiment.arms}
        total = 0.0
        with throw_away_arms(client, adapter, self.experiment, self.task, losses) as contexts:
            for arm in self._arms:
                state = self.service.run(open_arm(contexts[arm.name]))
                self.service.run(run_step(contexts[arm.name], state))  # the first one warms up
                started = time.perf_counter()
                self.service.run(run_step(contexts[arm.name], state))
                stepped = time.perf_counter()
                items = self._heldout[:TIMED_ITEMS]
                self._score(contexts[arm.name], state, items)
                scored = (time.perf_counter() - stepped) / len(items) * self._spec.heldout
                total += self._spec.steps * (stepped - started) + scored
                self.service.run(delete_checkpoints(client, contexts[arm.name].entry, state))
        return total * len(self._spec.learning_rates)

    def _score(self, context: ArmContext, state: ArmState, items: Sequence[Item]) -> list[Row]:
        """The rows of the weights after the last update, whatever the arm's lag."""
        from harness.training.evaluate import evaluate

        spec = self.experiment.registration.evaluation
        self.service.run(state.saved())
        sampler = state.snapshots.client(state.version)
        return self.service.run(evaluate(sampler, context.adapter, spec, items, _ignore))

    def _context(
        self, entry: Entry, trial: Arm, after_step: Callable[[StepRecord], None]
    ) -> ArmContext:
        from harness.audit.tracing import step_tracer
        from harness.training.context import arm_context

        client, adapter = self.service.client(), self.service.adapter(self.task)
        return arm_context(
            self.experiment,
            trial,
            self.task,
            client,
            adapter,
            entry,
            after_step=after_step,
            tracer=step_tracer(self.experiment, adapter),
            loss_backend=self.loss_backend(trial),
            heldout=self._spec.heldout,
        )


def _ignore(_row: Row) -> None:
    """The few held-out items show no live line."""
