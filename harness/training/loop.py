"""One arm, trained: the loop, readable top to bottom."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import DataError, RunError
from harness.records import Fingerprints, StepRecord
from harness.tasks.task import Item
from harness.training.checkpoints import open_arm, save_checkpoint
from harness.training.context import ArmContext, ArmState
from harness.training.datums import Batch, step_batch
from harness.training.estimators import Estimate, refuse_bad_rewards
from harness.training.fingerprints import take_fingerprints
from harness.training.fixed_text import forward
from harness.training.gather import gather
from harness.training.gradient_probe import fresh_arm, gradient_cosine
from harness.training.metrics import metrics_of
from harness.training.rollouts import SampledGroup, sample_step
from harness.training.snapshots import KEPT_SECONDS, delete_saved
from harness.training.step_records import group_records, learner_logprobs
from harness.training.updates import update

if TYPE_CHECKING:
    import tinker


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


async def run_step(context: ArmContext, state: ArmState) -> StepRecord:
    """Sample, grade, estimate, update, save the next snapshot: one optimizer step.

    Where every group is constant and such groups are dropped nothing is updated: the step counts,
    and the next version has the weights of this one.
    """
    step, started = state.version, time.perf_counter()
    where = f"arm {context.arm.name}: step {step}"
    prompts = step_prompts(context, step)
    sampled_version, sampler = state.snapshots.sampler(step)
    groups, (fingerprints, _) = await gather(
        sample_step(sampler, context.adapter, context.arm, step, prompts),
        gather(step_fingerprints(context, state, sampler), state.saved()),
    )
    sampled = time.perf_counter()

    estimate, batch = estimated(context, state, prompts, groups)
    probed = await probe_gradient(context, state, batch.data_D)
    unsent = await forward(state.client, batch.dropped_rows())
    updating = None
    if batch.trained:
        updating = await update(
            state.client, [batch.trained], context.arm, context.loss_backend, adam_params(context)
        )
    state.version += 1
    state.save_snapshot()
    done = None if updating is None else await updating.answer()
    trained = time.perf_counter()
    if not context.arm.lag:  # else the next step samples from an older one
        await state.saved()

    learner_D_T = learner_logprobs(where, batch, done, unsent)
    records = group_records(context.adapter, groups, estimate, batch, learner_D_T)
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
    state.estimator = estimate.state
    if estimate.state is not None:
        record["estimator_state"] = estimate.state
    if fingerprints is not None:
        record["fingerprints"] = fingerprints
    if context.loss_backend != "service":
        record["loss_backend"] = context.loss_backend
    record["trace"] = await context.tracer(state.proxy.take(), record, context.train)
    return record


async def step_fingerprints(
    context: ArmContext, state: ArmState, sampler: tinker.SamplingClient
) -> Fingerprints | None:
    """What tells the weights of sampler and learner apart, where arms lag.

    Without lag of the first step only: what differs there, differs under the same weights.

    Raises:
        RunError: an arm lags, and the sampler does not return the log-probs of a prompt.
    """
    if not context.lagged and state.version:
        return None
    text = context.adapter.text(context.train[0])
    found = await take_fingerprints(sampler, state.client, text)
    if found is None and context.lagged:
        raise RunError(
            f"arm {context.arm.name}: step {state.version}: the sampler does not return the "
            "log-probs of a prompt that are needed to know its weights; use a service that does"
        )
    return found


def estimated(
    context: ArmContext,
    state: ArmState,
    prompts: Sequence[tuple[int, Item]],
    groups: Sequence[SampledGroup],
) -> tuple[Estimate, Batch]:
    """The advantages of graded rollouts, and the datums that carry them.

    Advantages are of complete groups, before any is dropped.
    """
    step, groups_P = state.version, [group.rollouts for group in groups]
    rewards_P_G = [group.get_total_rewards() for group in groups_P]
    refuse_bad_rewards(context.arm.name, step, [index for index, _ in prompts], rewards_P_G)
    items = [item for _, item in prompts]
    estimate = context.estimator.estimate(items, rewards_P_G, step, state.estimator)
    drop = context.registration.training.drop_zero_variance_groups
    return estimate, step_batch(groups_P, estimate.advantages_P_G, drop_zero_variance=drop)


async def probe_gradient(
    context: ArmContext, state: ArmState, data_D: list[tinker.Datum]
) -> dict[str, float]:
    """The gradient's cosine with that of fresh rollouts, if the registration asks at this step.

    The fresh prompts are held out for it: no arm trains on them.
    """
    probe, step = context.registration.gradient_probe, state.version
    if probe is None or step % probe.every:
        return {}
    where = f"arm {context.arm.name}: step {step}, gradient probe"
    at = len(context.fresh) - (step // probe.every + 1) * probe.groups
    prompts = [(index, context.train[index]) for index in context.fresh[at : at + probe.groups]]
    fresh, sampler = fresh_arm(context.arm, probe.groups), state.snapshots.client(step)
    groups, (client, path) = await gather(
        sample_step(sampler, context.adapter, fresh, step, prompts), probe_client(context, state)
    )
    _, batch = estimated(context, state, prompts, groups)
    metrics, _ = await gather(
        gradient_cosine(where, client, context.arm, context.loss_backend, data_D, batch.data_D),
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


def _refuse_too_few_prompts(context: ArmContext) -> None:
    arm, left = context.arm, len(context.order)
    if arm.prompts > left:
        held = len(context.train) - left
        beside = f" beside {held} held out" if held else ""
        raise DataError(
            f"arm {arm.name}: {arm.steps} steps of {arm.groups_per_batch} prompts need "
            f"{arm.prompts}, but the train split has {left}{beside}; give it more "
            "data or fewer steps"
        )
