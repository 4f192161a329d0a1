"""One arm, trained: the loop, readable top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cards import Arm, Registration
from harness.cards.registration import LossClient
from harness.errors import DataError, RunError
from harness.records import Checkpoint, GroupRecord, StepRecord
from harness.store import Entry
from harness.training.datums import step_data
from harness.training.estimators import Estimate, Estimator, refuse_bad_rewards
from harness.training.fixed_text import text_tokens
from harness.training.gradient_probe import fresh_arm, gradient_cosine
from harness.training.prints import take_prints
from harness.training.prompts import Prompter
from harness.training.rollouts import SampledGroup, sample_step
from harness.training.snapshots import Snapshots
from harness.training.staleness_metrics import staleness_metrics
from harness.training.step_metrics import step_metrics
from harness.training.updates import update

if TYPE_CHECKING:
    import tinker

    from harness.tasks.gsm8k import Problem


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
    train: Sequence[Problem]
    order: Sequence[int]
    service: tinker.ServiceClient
    prompter: Prompter
    estimator: Estimator
    entry: Entry
    before_step: Callable[[], None]
    after_step: Callable[[StepRecord], None]
    loss_client: LossClient = "service"

    @property
    def lagged(self) -> bool:
        """Whether any arm of the experiment samples from older weights."""
        return any(arm.lag for arm in self.registration.arms)


@dataclass
class ArmState:
    """A training client after `version` updates."""

    client: tinker.TrainingClient
    snapshots: Snapshots
    version: int
    model: str
    probe: tinker.TrainingClient | None = None
    """The second client, on which gradients are measured."""


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
    snapshots = Snapshots(context.service, context.arm.lag, named=context.lagged)
    checkpoint: Checkpoint | None = context.entry.read("checkpoint")
    if checkpoint is None:
        client = await context.service.create_lora_training_client_async(
            context.base_model,
            rank=context.lora_rank,
            seed=context.arm.seed,
            train_mlp=spec.train_mlp,
            train_attn=spec.train_attn,
            train_unembed=spec.train_unembed,
        )
        version = 0
    else:
        client = await context.service.create_training_client_from_state_with_optimizer_async(
            checkpoint["state_path"]
        )
        await snapshots.restore(checkpoint["snapshots"])
        version = checkpoint["version"]
    info = await client.get_info_async()
    await snapshots.save(client, version)
    return ArmState(client, snapshots, version, info.model_data.model_name or "")


async def run_step(context: ArmContext, state: ArmState) -> StepRecord:
    """Sample, grade, estimate, update, save the next snapshot: one optimizer step."""
    step, started = state.version, time.perf_counter()
    where = f"arm {context.arm.name}: step {step}"
    prompts = step_prompts(context, step)
    sampled_version, sampler = state.snapshots.sampler(step)
    groups = await sample_step(sampler, context.prompter, context.arm, step, prompts)
    text = text_tokens(context.prompter, context.train[0])
    prints = await take_prints(where, sampler, state.client, text) if context.lagged else None
    sampled = time.perf_counter()

    estimate, data_D = estimated(context, step, prompts, groups)
    probed = await probe_gradient(context, state, data_D)
    done = await update(
        state.client, [data_D], context.arm, context.loss_client, adam_params(context)
    )
    state.version += 1
    trained = time.perf_counter()
    await state.snapshots.save(state.client, state.version)

    records = group_records(groups, estimate, learner_logprobs(where, data_D, done.forward))
    record = StepRecord(
        step=step,
        version=step,
        sampled_version=sampled_version,
        model=state.model,
        groups=records,
        kernel=estimate.kernel,
        metrics={
            **step_metrics(where, records, done.forward.metrics, done.stepped.metrics or {}),
            **staleness_metrics(where, context.arm, records, data_D),
            **done.metrics,
            **probed,
        },
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
    return record


def estimated(
    context: ArmContext,
    step: int,
    prompts: Sequence[tuple[int, Problem]],
    groups: Sequence[SampledGroup],
) -> tuple[Estimate, list[tinker.Datum]]:
    """The advantages of graded rollouts, and the datums that carry them."""
    rewards_P_G = [group.rollouts.get_total_rewards() for group in groups]
    refuse_bad_rewards(context.arm.name, step, [index for index, _ in prompts], rewards_P_G)
    estimate = context.estimator.estimate([problem for _, problem in prompts], rewards_P_G)
    return estimate, step_data([group.rollouts for group in groups], estimate.advantages_P_G)


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
    saved = await (await state.client.save_state_async(f"probe-{step:06d}")).result_async()
    if state.probe is None:
        state.probe = await context.service.create_training_client_from_state_with_optimizer_async(
            saved.path
        )
    else:
        await (await state.probe.load_state_async(saved.path)).result_async()
    at = len(context.order) - (step // probe.every + 1) * probe.groups
    prompts = [(index, context.train[index]) for index in context.order[at : at + probe.groups]]
    groups = await sample_step(
        state.snapshots.client(step),
        context.prompter,
        fresh_arm(context.arm, probe.groups),
        step,
        prompts,
    )
    _, fresh_D = estimated(context, step, prompts, groups)
    return await gradient_cosine(
        where, state.probe, context.arm, context.loss_client, data_D, fresh_D
    )


def step_prompts(context: ArmContext, step: int) -> list[tuple[int, Problem]]:
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
    """Save weights and optimizer on the service, then say so in the store: the path comes last."""
    known: Checkpoint | None = context.entry.read("checkpoint")
    if known is not None and known["version"] == state.version:
        return
    saved = await (await state.client.save_state_async(f"{state.version:06d}")).result_async()
    checkpoint = Checkpoint(
        version=state.version, state_path=saved.path, snapshots=state.snapshots.paths()
    )
    context.entry.publish("checkpoint", checkpoint)


def learner_logprobs(
    where: str, data_D: Sequence[tinker.Datum], forward: tinker.ForwardBackwardOutput
) -> list[list[float]]:
    """The learner's log-probs of every datum's targets (D, T).

    Raises:
        RunError: they are not one finite number a target.
    """
    rows_D_T = [[float(x) for x in o["logprobs"].tolist()] for o in forward.loss_fn_outputs]
    wanted, got = [datum.model_input.length for datum in data_D], [len(row) for row in rows_D_T]
    if got != wanted:
        raise RunError(
            f"{where}: the service returned {sum(got)} learner log-probs for {len(got)} datums, "
            f"{sum(wanted)} for {len(wanted)} were sent; use a service that returns one a target"
        )
    if not all(math.isfinite(x) for row in rows_D_T for x in row):
        raise RunError(
            f"{where}: a learner log-prob is not a finite number; look at the service's log, or "
            "lower the learning rate"
        )
    return rows_D_T


def group_records(
    groups: Sequence[SampledGroup], estimate: Estimate, learner_D_T: Sequence[Sequence[float]]
) -> list[GroupRecord]:
    """What is stored of a step's rollouts; learner log-probs are of the action tokens only."""
    rows = iter(learner_D_T)
    records = []
    for group, advantages_G in zip(groups, estimate.advantages_P_G, strict=True):
        turns = [trajectory.transitions[-1] for trajectory in group.rollouts.trajectories_G]
        records.append(
            GroupRecord(
                prompt=group.prompt,
                requested=group.requested,
                seed=group.seed,
                rewards_G=group.rollouts.get_total_rewards(),
                advantages_G=[float(advantage) for advantage in advantages_G],
                correct_G=[bool(turn.metrics["correct"]) for turn in turns],
                format_G=[bool(turn.metrics["format"]) for turn in turns],
                stop_G=[turn.ac.stop_reason for turn in turns],
                tokens_G_T=[turn.ac.tokens for turn in turns],
                logprobs_G_T=[turn.ac.logprobs for turn in turns],
                learner_logprobs_G_T=[list(next(rows)[-len(turn.ac.tokens) :]) for turn in turns],
            )
        )
    return records


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
