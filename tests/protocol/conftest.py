"""A run over scripted doubles: the small experiment, its problems, a service in this process."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

# the doubles of the SDK's clients stand beside the tests of training, the mini pilots here
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
sys.path.insert(0, str(Path(__file__).parent))

from service_doubles import CARD, ScriptedService, small_experiment, small_task

from harness.protocol.arms import ArmKeeper
from harness.protocol.run import CardRun
from harness.store import RunStore
from harness.training.word_problems import ProblemAdapter


class FakeService:
    """Doubles `harness.protocol.services.Service` over a scripted SDK client."""

    embedded = True
    exact = True

    def __init__(self, scripted, adapter):
        self.scripted, self._adapter = scripted, adapter
        self.asked = 0
        self._runner = asyncio.Runner()

    def identity(self):
        """One fixed service."""
        return {"kind": "embedded", "base_weights_sha256": "0" * 64}

    def client(self):
        """The scripted client; every question is counted."""
        self.asked += 1
        return self.scripted

    def adapter(self, _task):
        """A adapter on a tokenizer of the problems."""
        return self._adapter

    def run(self, work):
        """On a loop of its own."""
        return self._runner.run(work)

    def close(self):
        """Let the loop go."""
        self._runner.close()


@pytest.fixture(scope="session")
def words():
    """60 train problems and 20 test problems."""
    return small_task()


@pytest.fixture(scope="session")
def small():
    """Two arms of 5 steps with 8 rollouts each."""
    return small_experiment()


@pytest.fixture(scope="session")
def adapter(words, small):
    """A adapter on a tokenizer of these problems."""
    return new_adapter(words, small)


def new_adapter(words, small):
    """A adapter on a tokenizer of its own."""
    from tinker_cookbook.renderers import get_renderer

    from harness.embedded.tokenizer import build_tokenizer

    tokenizer = build_tokenizer([p.question for p in words.train], min_count=2)
    training = small.registration.training
    return ProblemAdapter(get_renderer(training.renderer, tokenizer), training)


@pytest.fixture
def fakes(small, words, adapter, tmp_path, monkeypatch):
    """`keeper(...)` and `run(...)` as a process of a pytest run makes them, over one store.

    `scripted` is the service's side, the same for all of them, as a service that outlives runs.
    """
    scripted = ScriptedService(adapter, words)
    services = []

    def service(*_arguments):
        services.append(FakeService(scripted, adapter))
        return services[-1]

    def keeper(run_id="first", retrain=False, experiment=small, served=None):
        store = RunStore(tmp_path / "runs")
        return ArmKeeper(
            experiment,
            store,
            served or service(),
            lambda: words,
            store.root,
            run_id,
            retrain,
            lambda arm: arm.loss_backends[0],
        )

    def apart():
        """A service with a tokenizer of its own, which threads can't share; the rest is shared."""
        own = new_adapter(words, small)
        side = ScriptedService(own, words)
        side.calls, side.requests, side.saved = scripted.calls, scripted.requests, scripted.saved
        services.append(FakeService(side, own))
        return services[-1]

    def unbound():
        """Let another registration use the store's arms: nothing was registered there."""
        (tmp_path / "runs" / "record.jsonl").unlink()
        shutil.rmtree(tmp_path / "runs" / "registered")

    def run(run_id="first", retrain=False, experiment=small):
        return CardRun(experiment, CARD, tmp_path / "runs", retrain, None, os.getpid(), run_id)

    monkeypatch.setattr("harness.protocol.run.Service", service)
    monkeypatch.setattr("harness.protocol.run.experiment_task", lambda *_arguments: words)
    yield SimpleNamespace(
        keeper=keeper,
        run=run,
        apart=apart,
        scripted=scripted,
        runs_dir=tmp_path / "runs",
        unbound=unbound,
    )
    for each in services:
        each.close()
