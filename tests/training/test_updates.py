import asyncio
import dataclasses

import numpy as np
import pytest
import tinker
from service_doubles import GRPO, ScriptedTrainer

from harness.audit.probes.arms import loss_datum
from harness.methods import loss_and_gradient
from harness.records import CUSTOM_LOSS
from harness.training.updates import CustomLoss, update

CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
ADAM = tinker.AdamParams(learning_rate=0.1, beta1=0.9, beta2=0.95, eps=1e-8)


@pytest.fixture(name="arm")
def _arm(small):
    return dataclasses.replace(small.arm(GRPO), loss="ppo", loss_config=CLIP)


def batch(client, seed=0):
    """Datums with ratios on both sides of both bounds, and advantages of both signs and 0."""
    generator = np.random.Generator(np.random.PCG64(seed))
    data = []
    for n in (5, 9, 3):
        tokens = generator.integers(1, 40, size=n + 1).tolist()
        datum = loss_datum(tokens, [0.0] * n, [0.0] * n)
        behaviour = client.read(datum) + generator.uniform(-0.5, 0.5, size=n)
        advantages = generator.choice([-1.0, 0.0, 0.5, 3.0], size=n)
        data.append(loss_datum(tokens, behaviour.tolist(), advantages.tolist()))
    return data


async def updated(*arguments):
    """What came of an update."""
    return await (await update(*arguments)).answer()


def flat(data, key):
    """One input of all datums as the wire carries it."""
    return np.concatenate([np.asarray(d.loss_fn_inputs[key].tolist(), float) for d in data])


@pytest.mark.parametrize("loss", ["ppo", "importance_sampling"])
def test_the_custom_loss_and_its_gradient_are_the_references(service, arm, loss):
    """Value and what the service is sent agree with the float64 loss and its derivative."""
    arm = dataclasses.replace(arm, loss=loss, loss_config=CLIP if loss == "ppo" else {})
    client = ScriptedTrainer(service, 3.0, 0.0, 0)
    data = batch(client)
    logprobs = np.concatenate([client.read(datum) for datum in data]).astype(np.float64)
    reference = loss_and_gradient(
        loss, logprobs, flat(data, "logprobs"), flat(data, "advantages"), dict(arm.loss_config)
    )

    done = asyncio.run(updated(client, [data], arm, "custom", ADAM))
    ((_, _, gradients),) = service.named("custom")

    assert done.metrics == {CUSTOM_LOSS: pytest.approx(reference.value, rel=1e-6)}
    assert np.concatenate(gradients) == pytest.approx(reference.gradient_T, rel=1e-5, abs=1e-6)
    assert (reference.gradient_T == 0.0).any()


def test_the_gradient_reaches_every_datum(service, arm):
    """A datum without advantage gets a gradient of 0, which the SDK would else refuse."""
    client = ScriptedTrainer(service, 3.0, 0.0, 0)
    silent = loss_datum([1, 2, 3], [-1.0, -1.0], [0.0, 0.0])

    asyncio.run(updated(client, [[*batch(client), silent]], arm, "custom", ADAM))

    ((_, _, gradients),) = service.named("custom")
    assert gradients[-1].tolist() == [0.0, 0.0]


def test_the_service_gets_its_own_loss_with_its_settings(service, arm):
    """With the service's client nothing is computed here."""
    client = ScriptedTrainer(service, 3.0, 0.0, 0)
    data = batch(client)

    done = asyncio.run(updated(client, [data], arm, "service", ADAM))

    assert service.named("forward_backward") == [("forward_backward", 0, data, "ppo", CLIP)]
    assert done.metrics == {}


@pytest.mark.parametrize("which", ["service", "custom"])
def test_batches_accumulate_before_one_step(service, arm, which):
    """Two batches, one optimizer step; the answer is that of the first."""
    client = ScriptedTrainer(service, 3.0, 0.0, 0)
    first, second = batch(client), batch(client, seed=1)[:1]

    done = asyncio.run(updated(client, [first, second], arm, which, ADAM))

    calls = [c[0] for c in service.calls if c[0] in ("forward_backward", "custom", "optim_step")]
    assert calls == [{"service": "forward_backward"}.get(which, which)] * 2 + ["optim_step"]
    assert len(done.forward.loss_fn_outputs) == len(first)


def test_datums_are_sent_without_what_the_sdk_refuses(service, arm):
    """Only targets travel; behaviour log-probs and advantages stay here, in order."""
    client = ScriptedTrainer(service, 3.0, 0.0, 0)
    data = batch(client)

    sent = CustomLoss(arm, data).targets()

    assert [set(datum.loss_fn_inputs) for datum in sent] == [{"target_tokens"}] * 3
    assert [d.model_input.to_ints() for d in sent] == [d.model_input.to_ints() for d in data]
