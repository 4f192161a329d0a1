"""Lag, stage and loss backend, crossed: which weights are scored, and whose loss is sent."""

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from service_doubles import STEPS, small_experiment

from harness.audit.finding import Finding
from harness.audit.loss_backends import BackendProbe
from harness.audit.loss_values import LossValue
from harness.audit.server_loss import LossEvidence
from harness.cards.registration import Tuning
from harness.errors import RunError
from harness.protocol import preflights
from harness.training import context, loop
from harness.training.snapshots import Snapshots

TUNING = Tuning(
    learning_rates=[1e-4, 3e-4, 9e-4], steps=3, heldout=5, factor=3.0, max_extensions=0,
    max_wall_minutes=60.0,
)  # fmt: skip
TRIALS = 2 * len(TUNING.learning_rates)

# what is registered, and what is chosen on a service that refuses a loss of its own if it may
BACKENDS = {
    "service": (("service",), "service"),
    "custom": (("custom",), "custom"),
    "fallback": (("service", "custom"), "custom"),
}
STAGES = ("training", "tuning", "capability")
CELLS = list(product((0, 2), STAGES, BACKENDS))


@pytest.fixture(name="stage")
def _stage(fakes, words, monkeypatch):
    """`stage(lag, name, backend)` runs a stage; what is wrong is raised or in `problems`."""
    only_train = replace(words, test=(), sha256s={"train": words.sha256s["train"]})
    monkeypatch.setattr("harness.protocol.run.train_task", lambda *_arguments: only_train)

    def run(lag, name, backend):
        registered, _ = BACKENDS[backend]
        experiment = experiment_of(lag, registered, TUNING if name == "tuning" else None)
        refuses = "BadRequestError: no such loss" if backend == "fallback" else None
        monkeypatch.setattr(preflights, "PREFLIGHTS", flights(experiment.arms[0].loss, refuses))
        card, problems = fakes.run(experiment=experiment), ()
        if name == "tuning":
            card._tune()
        elif name == "training":
            card.pilot()
            card.train()
            for arm in card.experiment.arms:
                card.arm(arm.name)
        else:
            problems = card.preflight("capability").problems
        return SimpleNamespace(run=card, problems=[p for p in problems if "gradient" in p])

    return run


def experiment_of(lag, loss_backends, tuning):
    """The small experiment with arms of this lag and these backends."""
    small = small_experiment(lag)
    arms = [a.model_copy(update={"loss_backends": loss_backends}) for a in small.registration.arms]
    changes = {"arms": arms, "tuning": tuning}
    return replace(small, registration=small.registration.model_copy(update=changes))


def flights(loss, refused):
    """The preflight that finds out which backends the service takes, and the one of first steps."""
    value = LossValue(
        loss=loss, config={}, logprobs_D_T=[], behaviour_D_T=[], advantages_D_T=[], reported=0.0
    )
    clients = [
        BackendProbe(client=client, value=value, move_T=[], refused=why)
        for client, why in (("service", refused), ("custom", None))
    ]
    evidence = LossEvidence(values=[], moves_T={}, step_size=0.0, clients=clients)
    measured = preflights.preflight(
        "server_loss", evidence=LossEvidence, collect=lambda _: evidence, kept=False
    )(lambda *_: Finding("server_loss", (), (), {}))
    return {"server_loss": measured, "capability": preflights.PREFLIGHTS["capability"]}


def gradients(scripted):
    """How many gradients of each backend the service was asked for."""
    return Counter(
        service=len(scripted.named("forward_backward")), custom=len(scripted.named("custom"))
    )


def scored_versions(scripted):
    """How many greedy requests a snapshot after so many updates answered."""
    found = (
        re.search(r"(?:after|version)-(\d+)$", request.model)
        for request in scripted.requests
        if request.params.temperature == 0.0
    )
    return Counter(int(match[1]) for match in found if match)


@pytest.mark.parametrize(("lag", "name", "backend"), CELLS)
def test_every_stage_sends_the_chosen_loss_and_scores_the_last_weights(
    fakes, stage, lag, name, backend
):
    """Trials, arms and throw-away steps have one backend; what is scored has all its updates."""
    ran = stage(lag, name, backend)
    assert ran.problems == []

    # an arm that is interrupted takes one stock step on either client, whatever the arm's loss
    stock = Counter(service=2 if name == "capability" else 0)
    updates = len(fakes.scripted.named("optim_step")) - stock.total()
    assert updates > 0
    assert gradients(fakes.scripted) == Counter({BACKENDS[backend][1]: updates}) + stock
    if name == "tuning":
        # the forecast of the stage's time takes two steps of each arm
        forecast = {2: 2 * TUNING.heldout}
        trials = {TUNING.steps: TRIALS * TUNING.heldout}
        assert scored_versions(fakes.scripted) == forecast | trials
    if name == "training":
        final = [
            ran.run._arms.entry(arm).summary()["sampler_path"] for arm in ran.run.experiment.arms
        ]
        assert [fakes.scripted.saved[path][2] for path in final] == [STEPS] * 2
        assert scored_versions(fakes.scripted) == {}, "final samplers and the base model alone"


@pytest.mark.parametrize(("lag", "backend"), list(product((0, 2), BACKENDS)))
def test_a_trial_scored_on_older_weights_is_refused(stage, monkeypatch, lag, backend):
    """The oldest snapshot that is still held is not that of the last update."""
    monkeypatch.setattr(
        Snapshots, "client", lambda self, _version: self._clients[min(self._clients)]
    )

    with pytest.raises(RunError, match=r"sampled with version [012] in 5 of 5"):
        stage(lag, "tuning", backend)


def other(backend):
    """The backend that was not chosen."""
    return "service" if backend == "custom" else "custom"


def wrong_request(monkeypatch):
    """The update is sent with the other backend's loss, and recorded as if it was not."""
    original = loop.update

    async def sent(client, batches, arm, backend, adam):
        return await original(client, batches, arm, other(backend), adam)

    monkeypatch.setattr(loop, "update", sent)


def wrong_choice(monkeypatch):
    """An arm is opened with the other backend, and says so in its records."""
    original = context.ArmContext

    def made(loss_backend, **given):
        return original(loss_backend=other(loss_backend), **given)

    monkeypatch.setattr(context, "ArmContext", made)


@pytest.mark.parametrize("plant", [wrong_request, wrong_choice])
@pytest.mark.parametrize(("lag", "name", "backend"), CELLS)
def test_a_loss_that_was_not_chosen_is_refused(stage, monkeypatch, lag, name, backend, plant):
    """The request trace is held to the chosen backend, even where the other is allowed."""
    plant(monkeypatch)

    if name == "capability":
        problems = stage(lag, name, backend).problems
        assert any("asked for a gradient with loss" in problem for problem in problems)
    else:
        with pytest.raises(RunError, match="asked for a gradient with loss"):
            stage(lag, name, backend)
