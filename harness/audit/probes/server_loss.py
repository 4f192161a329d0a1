"""Evidence for `server_loss`: reported losses, and how far single steps move log-probs."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.audit.loss_backends import CLIENTS, BackendProbe, NormProbe, compared_arms
from harness.audit.loss_values import LossValue
from harness.audit.probes.arms import loss_datum
from harness.audit.server_loss import LossEvidence, losses_of
from harness.cards import Experiment
from harness.cards.registration import LossBackend
from harness.errors import RunError, ServiceRefused
from harness.fingerprints import noise_floor
from harness.records import CUSTOM_LOSS
from harness.tasks.task import Task
from harness.training.fixed_text import forward, output_logprobs
from harness.training.gradient_probe import reported_norm, still
from harness.training.service import says_no
from harness.training.streams import stream_seed
from harness.training.task_adapter import AnyAdapter
from harness.training.updates import update

if TYPE_CHECKING:
    import tinker

    from harness.cards import Arm

TARGETS = 32
"""Target positions of the datum whose log-probs are watched; the longer one has twice as many."""

ADAM_EPS = 1e6
"""Far above any gradient, so that Adam's step is (learning rate / eps) times the gradient."""

WANTED_MOVE = 0.01
"""Nats: large against float32's 1e-6, small enough for a move to be linear in the gradient."""

LARGEST_WANTED = 0.04
"""Nats; further, a move is linear in the gradient to no better than the check's tolerance."""

CLEAR = 50.0
"""Times the noise of a reading that a move should be, to be measured to a few per cent."""

MOST_READINGS = 64
FIRST_STEP_SIZE = 1e-3
ATTEMPTS = 6
# rows of the value probe, of different lengths
VALUE_LENGTHS = (48, 33, 21)
SHIFT = 0.5


async def collect(
    service: tinker.ServiceClient, adapter: AnyAdapter, experiment: Experiment, task: Task
) -> LossEvidence:
    """Probe with fresh clients of one seed; each takes at most one step and is left behind."""
    rows = [adapter.text(item) for item in task.train[: len(VALUE_LENGTHS)]]

    async def client() -> tinker.TrainingClient:
        spec = experiment.registration.training
        return await service.create_lora_training_client_async(
            experiment.card.base_model,
            rank=experiment.card.lora_rank,
            seed=experiment.arms[0].seed,
            train_mlp=spec.train_mlp,
            train_attn=spec.train_attn,
            train_unembed=spec.train_unembed,
        )

    valued = await client()
    short = [row[: n + 1] for row, n in zip(rows, VALUE_LENGTHS, strict=True)]
    seed = experiment.registration.training.data_order_seed
    values = [
        value
        for arm in one_arm_per_loss(experiment)
        if (value := await loss_value(valued, arm, short, seed, experiment)) is not None
    ]

    longer = (rows[0] * (2 * TARGETS))[: 2 * TARGETS + 1]
    watched = longer[: TARGETS + 1]
    (before,), (again,) = await forward(valued, [watched]), await forward(valued, [watched])
    apart = noise_floor([(before.tolist(), again.tolist())])
    wanted, times = wanted_move(apart)
    noise = apart / math.sqrt(times)
    low, high = max(WANTED_MOVE / 4, 0.75 * min(wanted, CLEAR * noise)), 1.25 * wanted
    probes = probe_batches(watched, longer, before)
    step_size = FIRST_STEP_SIZE
    one = before * 0.0
    for _ in range(ATTEMPTS):
        one = await move(await client(), watched, probes["one"], step_size, times)
        largest = float(np.abs(one).max())
        if not math.isfinite(largest) or low <= largest <= max(WANTED_MOVE * 4, high):
            break
        step_size *= min(1e3, wanted / largest) if largest > 0.0 else 1e3
    others = [name for name in probes if name != "one"]
    clients = await asyncio.gather(*(client() for _ in others))
    moves = await asyncio.gather(
        *(
            move(fresh, watched, probes[name], step_size, times)
            for fresh, name in zip(clients, others, strict=True)
        )
    )
    return LossEvidence(
        values=values,
        moves_T={
            "one": one.tolist(),
            **{name: row.tolist() for name, row in zip(others, moves, strict=True)},
        },
        step_size=step_size,
        noise=noise,
        clients=[
            await client_probe(await client(), arm, which, short, seed, step_size, times)
            for arm in compared_arms(experiment)
            for which in CLIENTS
        ],
        norms=await norm_probe(await client(), experiment, short, seed),
    )


def one_arm_per_loss(experiment: Experiment) -> list[Arm]:
    """The first arm that trains with each loss."""
    return [
        next(arm for arm in experiment.arms if arm.loss == loss) for loss in losses_of(experiment)
    ]


async def loss_value(
    client: tinker.TrainingClient,
    arm: Arm,
    rows: Sequence[Sequence[int]],
    seed: int,
    experiment: Experiment,
) -> LossValue | None:
    """One forward_backward, with behaviour log-probs well away from the learner's.

    None if the service refuses a loss that is probed by either client as well.

    Raises:
        ServiceRefused: it refuses another loss.
    """

    data, value = await loss_batch(client, arm, rows, seed)
    sent = await client.forward_backward_async(data, arm.loss, value.config or None)
    try:
        result = await sent.result_async()
    except Exception as error:
        if not says_no(error):
            raise
        if arm.loss in (compared.loss for compared in compared_arms(experiment)):
            return None
        raise ServiceRefused(
            f"arm {arm.name}: the service refuses the loss {arm.loss} "
            f"({' '.join(str(error).split())[:200]}); use a service that has it"
        ) from error
    return value.model_copy(
        update={
            "logprobs_D_T": [row.tolist() for row in output_logprobs(result)],
            "reported": result.metrics.get("loss:sum"),
        }
    )


async def client_probe(
    client: tinker.TrainingClient,
    arm: Arm,
    which: LossBackend,
    rows: Sequence[Sequence[int]],
    seed: int,
    step_size: float,
    times: int,
) -> BackendProbe:
    """The arm's loss by the service or by this client, and one step along its gradient."""

    data, value = await loss_batch(client, arm, rows, seed)
    before = await mean_reading(client, rows, times)
    try:
        done = await (await update(client, [data], arm, which, small_step(step_size))).answer()
    except Exception as error:
        if not says_no(error):  # evidence is kept, and a failure that passes is none
            raise
        line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return BackendProbe(client=which, value=value, move_T=[], refused=line)
    after = await mean_reading(client, rows, times)
    reported = done.metrics.get(CUSTOM_LOSS, done.forward.metrics.get("loss:sum"))
    return BackendProbe(
        client=which,
        value=value.model_copy(update={"reported": reported}),
        move_T=(after - before).tolist(),
        refused=None,
    )


async def norm_probe(
    client: tinker.TrainingClient,
    experiment: Experiment,
    rows: Sequence[Sequence[int]],
    seed: int,
) -> NormProbe | None:
    """Norms of gradients whose sums are known; None if there is no probe, or no norm."""
    if experiment.registration.gradient_probe is None:
        return None
    arm = experiment.arms[0]
    (one, other, *_), _ = await loss_batch(client, arm, rows, seed)
    batches = {
        "one": [one],
        "two_copies": [one, one],
        "other": [other],
        "sum": [one, other],
        "difference": [one, negated(other)],
    }
    norms = {}
    for name, batch in batches.items():
        # without a clip: that of a negated advantage acts elsewhere
        plain = dataclasses.replace(arm, loss="importance_sampling", loss_config={})
        done = await (await update(client, [batch], plain, "service", still())).answer()
        try:
            norms[name] = reported_norm(name, done.stepped.metrics or {})
        except RunError:
            return None
    return NormProbe(**norms)


def negated(datum: tinker.Datum) -> tinker.Datum:
    """The datum with all advantages of the other sign."""
    tokens = [*datum.model_input.to_ints(), int(datum.loss_fn_inputs["target_tokens"].tolist()[-1])]
    advantages = [-float(a) for a in datum.loss_fn_inputs["advantages"].tolist()]
    return loss_datum(tokens, datum.loss_fn_inputs["logprobs"].tolist(), advantages)


async def loss_batch(
    client: tinker.TrainingClient, arm: Arm, rows: Sequence[Sequence[int]], seed: int
) -> tuple[list[tinker.Datum], LossValue]:
    """Datums with behaviour log-probs well away from the learner's, and what they hold."""
    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "server_loss", arm.loss)))
    current = await forward(client, rows)
    behaviour = [
        _float32(logprobs + generator.uniform(-SHIFT, SHIFT, size=logprobs.size))
        for logprobs in current
    ]
    advantages = [_float32(generator.uniform(0.2, 1.0, size=row.size)) for row in current]
    # both signs, without cancelling: a mean must not look like a sum
    advantages[-1] = -advantages[-1]
    data = [
        loss_datum(row, q.tolist(), a.tolist())
        for row, q, a in zip(rows, behaviour, advantages, strict=True)
    ]
    return data, LossValue(
        loss=arm.loss,
        config=dict(arm.loss_config),
        logprobs_D_T=[row.tolist() for row in current],
        behaviour_D_T=[row.tolist() for row in behaviour],
        advantages_D_T=[row.tolist() for row in advantages],
        reported=None,
    )


def probe_batches(
    watched: Sequence[int], longer: Sequence[int], logprobs: NDArray[np.float64]
) -> dict[str, list[tinker.Datum]]:
    """The batch of each probe. All gradients are those of `watched`, by the names of the check."""
    n = logprobs.size
    ones, zeros, half = [1.0] * n, [0.0] * n, n // 2
    q = logprobs.tolist()
    one = loss_datum(watched, q, ones)
    return {
        "one": [one],
        "two_copies": [one, one],
        "doubled_advantages": [loss_datum(watched, q, [2.0] * n)],
        "longer": [loss_datum(longer, [*q, *zeros], [*ones, *zeros])],
        "halves": [
            loss_datum(watched, q, ones[:half] + zeros[half:]),
            loss_datum(watched, q, zeros[:half] + ones[half:]),
        ],
        # the learner twice as likely as the sampler to emit each token
        "doubled_ratio": [loss_datum(watched, [value - math.log(2.0) for value in q], ones)],
    }


async def move(
    client: tinker.TrainingClient,
    watched: Sequence[int],
    batch: list[tinker.Datum],
    step_size: float,
    times: int,
) -> NDArray[np.float64]:
    """How one step on a batch moves the log-probs of `watched` (T)."""
    before = await mean_reading(client, [watched], times)
    sent = await client.forward_backward_async(batch, "importance_sampling")
    optimizer = await client.optim_step_async(small_step(step_size))
    await sent.result_async()
    await optimizer.result_async()
    return await mean_reading(client, [watched], times) - before


async def mean_reading(
    client: tinker.TrainingClient, rows: Sequence[Sequence[int]], times: int
) -> NDArray[np.float64]:
    """The mean of so many readings of these rows, one row after another (T)."""
    readings = await asyncio.gather(*(forward(client, rows) for _ in range(times)))
    mean: NDArray[np.float64] = np.mean([np.concatenate(each) for each in readings], axis=0)
    return mean


def wanted_move(apart: float) -> tuple[float, int]:
    """The move that a step should make, and of how many readings, which are so far apart."""
    if not math.isfinite(apart):
        return WANTED_MOVE, 1
    wanted = min(max(WANTED_MOVE, CLEAR * apart), LARGEST_WANTED)
    return wanted, min(MOST_READINGS, max(1, math.ceil((CLEAR * apart / wanted) ** 2)))


def small_step(step_size: float) -> tinker.AdamParams:
    """A step of `step_size` times the gradient: Adam with an eps far above it."""
    import tinker

    return tinker.AdamParams(
        learning_rate=step_size * ADAM_EPS, beta1=0.9, beta2=0.95, eps=ADAM_EPS
    )


def _float32(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values as the wire carries them."""
    return values.astype(np.float32).astype(np.float64)
