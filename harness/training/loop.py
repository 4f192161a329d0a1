"""One arm, trained: the loop, readable top to bottom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cards import Arm, Experiment, Registration
from harness.cards.registration import LossClient
from harness.checks.prints import bound, distance, floor, initial_pairs
from harness.errors import DataError, RunError, ServiceError
from harness.records import Checkpoint, Prints, StepRecord
from harness.store import Entry
from harness.tasks.task import Item, Task
from harness.training.datums import Batch, step_batch
from harness.training.estimators import Estimate, Estimator, estimator, refuse_bad_rewards
from harness.training.fixed_text import forward
from harness.training.gradient_probe import fresh_arm, gradient_cosine
from harness.training.metrics import metrics_of
from harness.training.prints import learner_print, take_prints
from harness.training.prompts import AnyPrompter
from harness.training.rollouts import SampledGroup, sample_step
from harness.training.sent import sent_step
from harness.training.service import says_no
from harness.training.snapshots import KEPT_SECONDS, Snapshots, delete_saved
from harness.training.step_records import group_records, learner_logprobs
from harness.training.streams import arm_order
from harness.training.together import both
from harness.training.updates import update
from harness.training.witness import Witness

if TYPE_CHECKING:
    import tinker

REPLAYED = 8
"""Few enough to cost a percent of a step, and every rollout has its turn."""


@dataclass(frozen=True)
class ArmContext:
    """All that one arm's training needs.

    `order` is the fixed order of the train split; `before_step` is asked before each step and
    raises to stop the run there, with the state kept.
    """

    arm: Arm
    registration: Registration
    base_model: str
    lora_rank: int
    train: Sequence[Item]
    order: Sequence[int]
    service: tinker.ServiceClient
    prompter: AnyPrompter
    estimator: Estimator
    entry: Entry
    before_step: Callable[[], None]
    after_step: Callable[[StepRecord], None]
    loss_client: LossClient = "service"
    replayed: int | None = REPLAYED
    """Rollouts of each step whose prompts and rewards are asked for again; None for all."""

    @property
    def lagged(self) -> bool:
        """Whether any arm of the experiment samples from older weights."""
        return any(arm.lag for arm in self.registration.arms)


def _never_stop() -> None:
    """No cap of its own."""


def _ignore(record: StepRecord) -> None:
    """No live line."""


def arm_context(
    experiment: Experiment,
    arm: Arm,
    task: Task,
    service: tinker.ServiceClient,
    prompter: AnyPrompter,
    entry: Entry,
    *,
    before_step: Callable[[], None] = _never_stop,
    after_step: Callable[[StepRecord], None] = _ignore,
    loss_client: LossClient = "service",
    replayed: int | None = REPLAYED,
) -> ArmContext:
    """The context of an arm, the same for its training and for the steps that are thrown away.

    What preflights see of an arm is what the run does only if both are made here.
    """
    spec = experiment.registration.training
    return ArmContext(
        arm=arm,
        registration=experiment.registration,
        base_model=experiment.card.base_model,
        lora_rank=experiment.card.lora_rank,
        train=task.train,
        order=arm_order(
            spec.data_order_seed,
            len(task.train),
            arm.groups_per_batch,
            arm.prompts,
            reuse=spec.reuse_prompts,
        ),
        service=service,
        prompter=prompter,
        estimator=estimator(arm, [item.question for item in task.train]),
        entry=entry,
        before_step=before_step,
        after_step=after_step,
        loss_client=loss_client,
        replayed=replayed,
    )


@dataclass
class ArmState:
    """A training client after `version` updates, and the witness before it."""

    client: tinker.TrainingClient
    snapshots: Snapshots
    version: int
    model: str
    witness: Witness
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


async def train_until(context: ArmContext, state: ArmState | None, steps: int) -> ArmState:
    """Take an arm from where it is to `steps` updates; a checkpoint stands at the end.

    A step counts once: its record is keyed by its number, and a resumed arm starts at its last
    checkpoint and repeats what came after with the same seeds.

    Args:
        context: the arm and what it needs.
        state: the live client of an earlier call, or None to resume or start.
        steps: how many updates the arm has when this returns.

    Raises:
        DataError: the train split has fewer prompts than the arm consumes.
        RunError: the service returned something that can't be used, or a reward is not finite.
        BudgetExceeded: from `before_step`.
    """
    _refuse_too_few_prompts(context)
    if state is None:
        state = await open_arm(context)
    while state.version < steps:
        try:
            context.before_step()
        except Exception:
            await save_checkpoint(context, state)
            raise
        record = await run_step(context, state)
        context.entry.publish_step(record["step"], record)
        context.after_step(record)
        if state.version % context.registration.training.checkpoint_every == 0:
            await save_checkpoint(context, state)
    await save_checkpoint(context, state)
    return state


async def open_arm(context: ArmContext) -> ArmState:
    """The arm's client: restored from its last checkpoint, else fresh from its init seed."""
    spec = context.registration.training
    checkpoint: Checkpoint | None = context.entry.read("checkpoint")
    witness = Witness(context.service, updates_behind(context.entry, checkpoint))
    service = witness.client()
    snapshots = Snapshots(service, context.arm.lag, named=context.lagged)
    if checkpoint is None:
        client = await service.create_lora_training_client_async(
            context.base_model,
            rank=context.lora_rank,
            seed=context.arm.seed,
            train_mlp=spec.train_mlp,
            train_attn=spec.train_attn,
            train_unembed=spec.train_unembed,
        )
        version = 0
    else:
        client = await restored(context, service, checkpoint, snapshots)
        await refuse_other_weights(context, client, checkpoint)
        version = checkpoint["version"]
    _, info = await asyncio.gather(snapshots.save(client, version), client.get_info_async())
    return ArmState(client, snapshots, version, info.model_data.model_name or "", witness)


async def restored(
    context: ArmContext,
    service: tinker.ServiceClient,
    checkpoint: Checkpoint,
    snapshots: Snapshots,
) -> tinker.TrainingClient:
    """The client of a checkpoint, and the snapshots that its next steps sample from.

    Raises:
        ServiceError: the service has one of them no longer. An older snapshot can't be made again,
            and a newer one in its place would be another lag: the arm has to start over.
    """
    create = service.create_training_client_from_state_with_optimizer_async
    text = context.prompter.text(context.train[0])
    try:
        await snapshots.restore(checkpoint["snapshots"], text)
        return await create(checkpoint["state_path"])
    except Exception as error:
        if not says_no(error):
            raise
        raise ServiceError(
            f"arm {context.arm.name}: what its checkpoint after {checkpoint['version']} updates "
            f"needs is gone from the service ({' '.join(str(error).split())}); to start the arm "
            f"over, delete {context.entry.folder} and run again"
        ) from error


async def run_step(context: ArmContext, state: ArmState) -> StepRecord:
    """Sample, grade, estimate, update, save the next snapshot: one optimizer step.

    Where every group is constant and such groups are dropped nothing is updated: the step counts,
    and the next version has the weights of this one.
    """
    step, started = state.version, time.perf_counter()
    where = f"arm {context.arm.name}: step {step}"
    prompts = step_prompts(context, step)
    sampled_version, sampler = state.snapshots.sampler(step)
    groups, (prints, _) = await both(
        sample_step(sampler, context.prompter, context.arm, step, prompts),
        both(printed(context, state, sampler), state.saved()),
    )
    sampled = time.perf_counter()

    estimate, batch = estimated(context, step, prompts, groups)
    probed = await probe_gradient(context, state, batch.data_D)
    unsent = await forward(state.client, batch.dropped_rows())
    updating = None
    if batch.trained:
        updating = await update(
            state.client, [batch.trained], context.arm, context.loss_client, adam_params(context)
        )
    state.version += 1
    state.save_snapshot()
    done = None if updating is None else await updating.answer()
    trained = time.perf_counter()
    if not context.arm.lag:  # else the next step samples from an older one
        await state.saved()

    learner_D_T = learner_logprobs(where, batch, done, unsent)
    records = group_records(context.prompter, groups, estimate, batch, learner_D_T)
    record = StepRecord(
        step=step,
        version=step,
        sampled_version=sampled_version,
        model=state.model,
        groups=records,
        kernel=estimate.kernel,
        metrics={**metrics_of(where, context.arm, records, batch, done), **probed},
        seconds={
            "sample": sampled - started,
            "train": trained - sampled,
            "snapshot": time.perf_counter() - trained,
        },
    )
    if prints is not None:
        record["prints"] = prints
    if context.loss_client != "service":
        record["loss_client"] = context.loss_client
    sent = await sent_step(
        state.witness.take(),
        record,
        context.prompter,
        context.train,
        probed=context.registration.gradient_probe is not None,
        replayed=context.replayed,
    )
    record["sent"] = sent.plain()
    return record


async def printed(
    context: ArmContext, state: ArmState, sampler: tinker.SamplingClient
) -> Prints | None:
    """What tells the weights of sampler and learner apart, where arms lag.

    Without lag of the first step only: what differs there, differs under the same weights.

    Raises:
        RunError: an arm lags, and the sampler does not return the log-probs of a prompt.
    """
    if not context.lagged and state.version:
        return None
    prints = await take_prints(sampler, state.client, context.prompter.text(context.train[0]))
    if prints is None and context.lagged:
        raise RunError(
            f"arm {context.arm.name}: step {state.version}: the sampler does not return the "
            "log-probs of a prompt that are needed to know its weights; use a service that does"
        )
    return prints


def estimated(
    context: ArmContext,
    step: int,
    prompts: Sequence[tuple[int, Item]],
    groups: Sequence[SampledGroup],
) -> tuple[Estimate, Batch]:
    """The advantages of graded rollouts, and the datums that carry them.

    Advantages are of complete groups, before any is dropped.
    """
    rewards_P_G = [group.rollouts.get_total_rewards() for group in groups]
    refuse_bad_rewards(context.arm.name, step, [index for index, _ in prompts], rewards_P_G)
    estimate = context.estimator.estimate([item for _, item in prompts], rewards_P_G)
    drop = context.registration.training.drop_constant_groups
    return estimate, step_batch(groups, estimate.advantages_P_G, drop_constant=drop)


async def probe_gradient(
    context: ArmContext, state: ArmState, data_D: list[tinker.Datum]
) -> dict[str, float]:
    """The gradient's cosine with that of fresh rollouts, if the registration asks at this step.

    The fresh prompts are taken from the far end of the order, which no arm trains on.
    """
    probe, step = context.registration.gradient_probe, state.version
    if probe is None or step % probe.every:
        return {}
    where = f"arm {context.arm.name}: step {step}, gradient probe"
    at = len(context.order) - (step // probe.every + 1) * probe.groups
    prompts = [(index, context.train[index]) for index in context.order[at : at + probe.groups]]
    fresh, sampler = fresh_arm(context.arm, probe.groups), state.snapshots.client(step)
    groups, (client, path) = await both(
        sample_step(sampler, context.prompter, fresh, step, prompts), probe_client(context, state)
    )
    _, batch = estimated(context, step, prompts, groups)
    metrics, _ = await both(
        gradient_cosine(where, client, context.arm, context.loss_client, data_D, batch.data_D),
        delete_saved(context.service, [path]),
    )
    return metrics


async def probe_client(context: ArmContext, state: ArmState) -> tuple[tinker.TrainingClient, str]:
    """The second client, at the learner's weights, and the path that they were taken from."""
    sent = await state.client.save_state_async(f"probe-{state.version:06d}", KEPT_SECONDS)
    path = (await sent.result_async()).path
    if state.probe is None:
        state.probe = await context.service.create_training_client_from_state_with_optimizer_async(
            path
        )
    else:
        await (await state.probe.load_state_async(path)).result_async()
    return state.probe, path


def step_prompts(context: ArmContext, step: int) -> list[tuple[int, Item]]:
    """The prompts of a step: the next stretch of the fixed order, as (index, problem)."""
    n = context.arm.groups_per_batch
    return [(index, context.train[index]) for index in context.order[step * n : (step + 1) * n]]


def adam_params(context: ArmContext) -> tinker.AdamParams:
    """Adam as it is sent with every update."""
    import tinker

    adam = context.registration.training.adam
    return tinker.AdamParams(
        learning_rate=context.arm.learning_rate,
        beta1=adam.beta1,
        beta2=adam.beta2,
        eps=adam.eps,
        weight_decay=adam.weight_decay,
        grad_clip_norm=adam.grad_clip_norm,
    )


async def save_checkpoint(context: ArmContext, state: ArmState) -> None:
    """Save weights and optimizer on the service, then say so in the store: the path comes last.

    Before the first step there is nothing to keep: the init seed makes the same client again. Then
    the checkpoint before it, and the snapshots that only that one needed, are deleted.
    """
    known: Checkpoint | None = context.entry.read("checkpoint")
    if state.version == (0 if known is None else known["version"]):
        return
    sent = await state.client.save_state_async(f"{state.version:06d}", KEPT_SECONDS)
    saved = await sent.result_async()
    await state.saved()
    checkpoint = Checkpoint(
        version=state.version,
        state_path=saved.path,
        snapshots=state.snapshots.paths(state.version),
        print=await learner_print(state.client, context.prompter.text(context.train[0])),
    )
    context.entry.publish("checkpoint", checkpoint)
    before = [] if known is None else [known["state_path"]]
    await delete_saved(context.service, [*before, *state.snapshots.outdated(state.version)])


async def let_go(service: tinker.ServiceClient, entry: Entry, state: ArmState) -> None:
    """Delete what an arm has left on the service to be resumed from; it never will be."""
    await state.saved()
    checkpoint: Checkpoint | None = entry.read("checkpoint")
    resumable = [] if checkpoint is None else [checkpoint["state_path"]]
    await delete_saved(service, [*resumable, *state.snapshots.outdated(None)])


async def refuse_other_weights(
    context: ArmContext, client: tinker.TrainingClient, checkpoint: Checkpoint
) -> None:
    """Hold a restored client against the print of the weights that were saved.

    The restored weights are read twice, so that what the service makes of them by itself is known.

    Raises:
        RunError: they differ; what was trained from here on would be another run.
    """
    saved = checkpoint.get("print")
    if saved is None:
        return
    text = context.prompter.text(context.train[0])
    restored, again = await learner_print(client, text), await learner_print(client, text)
    pairs = [(restored, again), *initial_pairs(context.entry.read_step(0))]
    difference, allowed = distance(saved, restored), bound(floor(pairs))
    if not difference <= allowed:
        raise RunError(
            f"arm {context.arm.name}: log-probs of the weights restored after "
            f"{checkpoint['version']} updates differ by {difference:.3g} from the saved ones', "
            f"bound {allowed:.3g}; run again with --retrain"
        )


def updates_behind(entry: Entry, checkpoint: Checkpoint | None) -> dict[str, int]:
    """How many updates are behind everything that a checkpoint names, by path.

    A version counts steps; of these some update nothing, as their records say.
    """
    if checkpoint is None:
        return {}
    records = [entry.read_step(step) for step in range(checkpoint["version"])]
    updates = [record["metrics"].get("updated", 1.0) if record else 1.0 for record in records]
    saved = {path: int(version) for version, path in checkpoint["snapshots"].items()}
    saved[checkpoint["state_path"]] = checkpoint["version"]
    return {path: int(sum(updates[:version])) for path, version in saved.items()}


def _refuse_too_few_prompts(context: ArmContext) -> None:
    probe = context.registration.gradient_probe
    probes = 0 if probe is None else probe.prompts(context.arm.steps)
    if context.arm.prompts + probes > len(context.order):
        raise DataError(
            f"arm {context.arm.name}: {context.arm.steps} steps of "
            f"{context.arm.groups_per_batch} prompts need {context.arm.prompts + probes}"
            f"{f', {probes} of them for gradient probes' if probes else ''}, but the train "
            f"split has {len(context.order)}; give it more data or fewer steps"
        )
