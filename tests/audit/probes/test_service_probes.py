import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from harness.audit import capability, feasibility, restoration, server_loss
from harness.audit.loss_moves import EXPECTED
from harness.errors import ServiceRefused


@pytest.fixture(scope="module", name="steps")
def _steps(live):
    from harness.audit.probes import throw_away

    return live.collect(throw_away)


class OtherService:
    """A service client whose training clients behave otherwise than the engine's."""

    def __init__(self, service, client) -> None:
        self._service = service
        self._client = client
        self.created = 0

    async def create_lora_training_client_async(self, model, **settings):
        """A client that the mistake wraps; `created` counts them."""
        self.created += 1
        made = await self._service.create_lora_training_client_async(model, **settings)
        return self._client(made)

    def __getattr__(self, name):
        return getattr(self._service, name)


class OtherClient:
    """Passes everything on to a real training client."""

    def __init__(self, client) -> None:
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)


def _rescaled(datum, factor):
    inputs = dict(datum.loss_fn_inputs)
    inputs["advantages"] = np.asarray(inputs["advantages"].tolist(), dtype=np.float32) * factor
    return dataclasses.replace(datum, loss_fn_inputs=inputs)


class TokenMeans(OtherClient):
    """Divides by the number of tokens in the batch, as some servers do."""

    async def forward_backward_async(self, data, loss, config=None):
        """The loss of a batch whose advantages were divided."""
        tokens = sum(datum.model_input.length for datum in data)
        scaled = [_rescaled(datum, np.float32(1 / tokens)) for datum in data]
        return await self._client.forward_backward_async(scaled, loss, config)


class DatumMeans(OtherClient):
    """Divides by the number of datums in the batch."""

    async def forward_backward_async(self, data, loss, config=None):
        """The loss of a batch whose advantages were divided."""
        scaled = [_rescaled(datum, np.float32(1 / len(data))) for datum in data]
        return await self._client.forward_backward_async(scaled, loss, config)


class RatioTurned(OtherClient):
    """Weighs by exp(behaviour - learner)."""

    async def forward_backward_async(self, data, loss, config=None):
        """Behaviour log-probs mirrored at the learner's."""
        current = await (
            await self._client.forward_async(list(data), "importance_sampling")
        ).result_async()
        turned = []
        for datum, output in zip(data, current.loss_fn_outputs, strict=True):
            inputs = dict(datum.loss_fn_inputs)
            learner = np.asarray(output["logprobs"].tolist())
            behaviour = np.asarray(inputs["logprobs"].tolist())
            inputs["logprobs"] = (2 * learner - behaviour).astype(np.float32)
            turned.append(dataclasses.replace(datum, loss_fn_inputs=inputs))
        return await self._client.forward_backward_async(turned, loss, config)


class Noisy(OtherClient):
    """Reads the same weights up to 0.001 nats off, otherwise each time."""

    def __init__(self, client) -> None:
        super().__init__(client)
        self._generator = np.random.Generator(np.random.PCG64(id(client) % 97))

    async def forward_async(self, data, loss):
        """The true log-probs and some noise."""
        future = await self._client.forward_async(data, loss)
        generator = self._generator

        class Spoilt:
            async def result_async(self):
                result = await future.result_async()
                rows = [np.asarray(each["logprobs"].tolist()) for each in result.loss_fn_outputs]
                rows = [row + generator.uniform(-1e-3, 1e-3, size=row.size) for row in rows]
                return SimpleNamespace(loss_fn_outputs=[{"logprobs": row} for row in rows])

        return Spoilt()


class NoisyMeans(Noisy, DatumMeans):
    """Divides by the number of datums, and is read with noise."""


class NoMetrics(OtherClient):
    """Reports no loss."""

    async def forward_backward_async(self, data, loss, config=None):
        """The same update, its metrics withheld."""
        future = await self._client.forward_backward_async(data, loss, config)

        class Silent:
            async def result_async(self):
                result = await future.result_async()
                return SimpleNamespace(loss_fn_outputs=result.loss_fn_outputs, metrics={})

        return Silent()


class NoSteps(OtherClient):
    """Takes optimizer steps without effect."""

    async def optim_step_async(self, adam):
        """A step of size zero."""
        return await self._client.optim_step_async(adam.model_copy(update={"learning_rate": 0.0}))


class NoClippedLoss(OtherClient):
    """Has no `ppo`."""

    async def forward_backward_async(self, data, loss, config=None):
        """Asks for a loss that is none."""
        other = "ppo_of_another_service" if loss == "ppo" else loss
        return await self._client.forward_backward_async(data, other, config)


class NoLoss(OtherClient):
    """Has no policy loss at all."""

    async def forward_backward_async(self, data, _loss, config=None):
        """Asks for a loss that is none."""
        return await self._client.forward_backward_async(data, "a_loss", config)


class IgnoresSeeds:
    """Creates every client from another init seed than the one asked for."""

    def __init__(self, service) -> None:
        self._service = service
        self._created = 0

    async def create_lora_training_client_async(self, model, **settings):
        """Seeds 100, 101, ..."""
        self._created += 1
        settings["seed"] = 99 + self._created
        return await self._service.create_lora_training_client_async(model, **settings)

    def __getattr__(self, name):
        return getattr(self._service, name)


def test_the_engine_sums_its_losses(live, experiment):
    """The embedded engine's loss is the token sum, in value and in effect."""
    from harness.audit.probes import server_loss as probe

    evidence = live.collect(probe)
    finding = server_loss.check(server_loss.LossEvidence.of(evidence.plain()), experiment)

    assert finding.ok, finding.message
    assert "outcome: holds" == finding.notes[0]
    for name, expected in EXPECTED.items():
        assert finding.metrics[f"move_ratio.{name}"] == pytest.approx(expected, rel=0.01)


def test_a_service_that_does_not_repeat_itself_is_read_more_often(live, experiment):
    """Its moves are larger and averaged, so that they still tell a sum from a mean."""
    from harness.audit.probes import server_loss as probe

    evidence = live.collect(probe, OtherService(live.service, Noisy))
    finding = server_loss.check(server_loss.LossEvidence.of(evidence.plain()), experiment)

    assert finding.ok, finding.message
    assert 0.0 < finding.metrics["noise"] < 1e-3
    assert finding.metrics["largest_move"] > 25 * finding.metrics["noise"]


@pytest.mark.parametrize(
    ("apart", "move", "times"),
    [(0.0, 0.01, 1), (1e-4, 0.01, 1), (8e-4, 0.04, 1), (1.6e-3, 0.04, 4), (1.0, 0.04, 64)],
)
def test_readings_that_differ_ask_for_more_of_them(apart, move, times):
    """An exact service is read once; nothing is read without end."""
    from harness.audit.probes.server_loss import wanted_move

    assert wanted_move(apart) == (pytest.approx(move), times)
    assert wanted_move(math.nan) == (0.01, 1)


@pytest.mark.parametrize(
    ("client", "outcome", "words"),
    [
        (TokenMeans, "fails", "this fits mean over tokens"),
        (DatumMeans, "fails", "this fits mean over the datums of a batch"),
        (RatioTurned, "fails", "the ratio the wrong way round"),
        (NoMetrics, "unverifiable", "reports no loss:sum"),
        (NoSteps, "unverifiable", "too little to measure"),
        (NoisyMeans, "fails", "this fits mean over the datums of a batch"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_another_service_is_found_out(live, experiment, client, outcome, words):
    """A service that aggregates or weighs otherwise is refused with the rule that it follows."""
    from harness.audit.probes import server_loss as probe

    evidence = live.collect(probe, OtherService(live.service, client))
    finding = server_loss.check(evidence, experiment)

    assert not finding.ok
    assert f"outcome: {outcome}" == finding.notes[0]
    assert words in finding.message


@pytest.mark.parametrize("clients", [("service", "custom"), ("service",)])
def test_a_refused_clipped_loss_falls_back_only_if_that_is_registered(
    live, experiment, task, clients
):
    """The refusal is evidence and no end: the other client is probed all the same."""
    from harness.audit.probes import server_loss as probe

    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    change = {"loss": "ppo", "loss_config": bounds, "loss_backends": clients}
    specs = [spec.model_copy(update=change) for spec in experiment.registration.arms]
    registration = experiment.registration.model_copy(update={"arms": specs})
    clipped = dataclasses.replace(experiment, registration=registration)

    service = OtherService(live.service, NoClippedLoss)
    evidence = live.run(probe.collect(service, live.adapter, clipped, task))
    finding = server_loss.check(server_loss.LossEvidence.of(evidence.plain()), clipped)

    assert finding.ok == ("custom" in clients), finding.message
    said = "falls back to custom" if finding.ok else "none of its loss backends (service) works"
    assert any(said in line for line in (*finding.notes, finding.message))
    assert "ppo_of_another_service" in "".join((*finding.notes, finding.message))


def test_a_service_without_the_registered_loss_is_told_in_one_line(live):
    """Importance sampling has no stand-in."""
    from harness.audit.probes import server_loss as probe

    with pytest.raises(ServiceRefused, match=r"refuses the loss importance_sampling .*a_loss"):
        live.collect(probe, OtherService(live.service, NoLoss))


def test_both_arms_start_equal_and_stay_equal(live, experiment):
    """Fresh clients of both arms agree bit for bit, before and after an identical step."""
    from harness.audit.probes import restoration as probe

    evidence = live.collect(probe)
    finding = restoration.check(restoration.RestorationEvidence.of(evidence.plain()), experiment)

    assert finding.ok, finding.message
    assert 0.0 == finding.metrics["group0.difference_after"]
    assert finding.metrics["group0.smallest_move"] > 1e-4


def test_another_a_shows_after_the_step_only(live, experiment):
    """B = 0 hides a different A; one identical step brings it out."""
    from harness.audit.probes import restoration as probe

    found = live.collect(probe, IgnoresSeeds(live.service))
    # what the engine says of itself is the connection's to add
    finding = restoration.check(found.model_copy(update={"exact": True}), experiment)

    assert 0.0 == finding.metrics["group0.difference_before"]
    assert "after an identical step, bound 0; the init seed is not honoured" in finding.message


def test_a_step_without_effect_is_noticed(live, experiment):
    """A service that ignores optim_step would make any two arms look equal."""
    from harness.audit.probes import restoration as probe

    finding = restoration.check(
        live.collect(probe, OtherService(live.service, NoSteps)), experiment
    )

    assert "shows nothing about A" in finding.message


def test_steps_are_counted_as_executed(steps, experiment):
    """Both arms took 64 rollouts of the served model, with tokens and timings of each phase."""
    assert [64, 64] == [arm.rollouts for arm in steps.arms]
    assert {experiment.card.base_model} == {arm.model for arm in steps.arms}
    assert all(arm.tokens >= arm.rollouts for arm in steps.arms)
    assert all(0 < arm.stopped < 64 for arm in steps.arms)
    assert [2, 2] == [len(arm.seconds) for arm in steps.arms]
    assert 128 == steps.evaluated


def test_a_model_that_never_boxes_an_answer_is_not_capable(steps, experiment):
    """The random model ends some responses and parses none, and nothing else is wrong with it."""
    lines = capability.check(steps, experiment).problems

    assert 2 == len(lines)
    assert all("0 of 64 responses could be parsed" in line for line in lines)


def test_prompts_come_back_from_text(steps, task):
    """The tokenizer gives every prompt back, and all prompts that the run uses were measured."""
    assert (128, []) == (steps.round_trip.prompts, steps.round_trip.broken)
    assert len(task.train) == steps.lengths["train"].prompts
    assert len(task.test) == steps.lengths["test"].prompts


def test_prediction_follows_from_the_measured_seconds(steps, experiment):
    """The predicted training time is 40 steps of what each arm's steps took on average."""
    finding = feasibility.check(steps, experiment)
    expected = sum(40 * sum(sum(s.values()) for s in arm.seconds) / 2 for arm in steps.arms)

    assert finding.metrics["predicted_training_seconds"] == pytest.approx(expected)
    assert math.isfinite(finding.metrics["predicted_wall_minutes"])
