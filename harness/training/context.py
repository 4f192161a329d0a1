"""What one arm's training needs, and where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from harness.cards import Arm, Experiment, Registration
from harness.cards.registration import LossBackend
from harness.records import StepRecord
from harness.store import Entry
from harness.tasks.task import Item, Task
from harness.training.estimators import Estimator, estimator
from harness.training.recording_proxy import RecordingProxy, RequestTrace
from harness.training.snapshots import Snapshots
from harness.training.streams import arm_order, data_order
from harness.training.task_adapter import AnyAdapter

if TYPE_CHECKING:
    import tinker


Tracer = Callable[[RequestTrace, StepRecord, Sequence[Item]], Awaitable[dict[str, JsonValue]]]
"""From a step's requests, its record and the split that its arm drew from to what is stored."""


@dataclass(frozen=True)
class ArmContext:
    """All that one arm's training needs.

    `order` is what the arm draws of the train split, in order; `fresh` is held out of every arm's
    order for gradient probes. `before_step` is asked before each step and raises to stop the run
    there, with the state kept.
    """

    arm: Arm
    registration: Registration
    base_model: str
    lora_rank: int
    train: Sequence[Item]
    order: Sequence[int]
    fresh: Sequence[int]
    service: tinker.ServiceClient
    adapter: AnyAdapter
    estimator: Estimator
    entry: Entry
    before_step: Callable[[], None]
    after_step: Callable[[StepRecord], None]
    tracer: Tracer
    loss_backend: LossBackend = "service"

    @property
    def lagged(self) -> bool:
        """Whether any arm of the experiment samples from older weights."""
        return any(arm.lag for arm in self.registration.arms)


@dataclass
class ArmState:
    """A training client after `version` updates, and the proxy before it."""

    client: tinker.TrainingClient
    snapshots: Snapshots
    version: int
    model: str
    proxy: RecordingProxy
    estimator: JsonValue = None
    """What the estimator returned for the step before."""
    probe: tinker.TrainingClient | None = None
    """The second client, on which gradients are measured."""
    saving: asyncio.Task[None] | None = None
    """The newest snapshot, on its way."""

    def save_snapshot(self) -> None:
        """Begin to save this version's snapshot, behind whatever the client has been sent."""
        self.saving = asyncio.create_task(self.snapshots.save(self.client, self.version))
        # whoever waits gets its error; where a step breaks first nobody does
        self.saving.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def saved(self) -> None:
        """Wait until the newest snapshot is there."""
        if self.saving is not None:
            await self.saving


def _never_stop() -> None:
    """No cap of its own."""


def _ignore(record: StepRecord) -> None:
    """No live line."""


def arm_context(
    experiment: Experiment,
    arm: Arm,
    task: Task,
    service: tinker.ServiceClient,
    adapter: AnyAdapter,
    entry: Entry,
    *,
    before_step: Callable[[], None] = _never_stop,
    after_step: Callable[[StepRecord], None] = _ignore,
    tracer: Tracer,
    loss_backend: LossBackend = "service",
    heldout: int = 0,
) -> ArmContext:
    """The context of an arm, the same for its training and for the steps that are thrown away.

    What preflights see of an arm is what the run does only if both are made here. The last
    `heldout` prompts of the split's order are out of its reach.
    """
    spec, n = experiment.registration.training, len(task.train)
    held_out = heldout + experiment.probe_prompts
    split = data_order(spec.data_order_seed, n)
    return ArmContext(
        arm=arm,
        registration=experiment.registration,
        base_model=experiment.card.base_model,
        lora_rank=experiment.card.lora_rank,
        train=task.train,
        order=arm_order(
            spec.data_order_seed,
            n,
            arm.groups_per_batch,
            arm.prompts,
            reuse=spec.reuse_prompts,
            held_out=held_out,
        ),
        fresh=split[max(0, n - held_out) : n - heldout],
        service=service,
        adapter=adapter,
        estimator=estimator(arm, [item.question for item in task.train]),
        entry=entry,
        before_step=before_step,
        after_step=after_step,
        tracer=tracer,
        loss_backend=loss_backend,
    )
