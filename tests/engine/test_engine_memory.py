"""What the engine keeps in memory, and what it gives back."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.engine import registry as registry_module
from harness.engine.base_model import read_config, read_weights
from harness.engine.lora import LoraConfig, LoraLayout
from harness.engine.losses import resolve
from harness.engine.registry import Registry
from harness.engine.rope import Rope
from harness.engine.snapshots import MergedCache, Snapshot
from harness.engine.trainer import Datum, Trainee


def _trainee(folder: Path) -> Trainee:
    config = read_config(folder)
    layout = LoraLayout(config, LoraConfig(rank=4))
    return Trainee(config, read_weights(folder, config), Rope(config), layout, layout.fresh())


def _held(owner: object) -> int:
    """Bytes of the tensors that an object's own fields hold, each storage once."""
    found = {}
    for value in vars(owner).values():
        for tensor in value.values() if isinstance(value, dict) else [value]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def test_a_model_takes_what_the_page_says(model_folder: Path) -> None:
    """Three times its adapter, and twice the matrices that the adapter touches once trained."""
    trainee = _trainee(model_folder)
    adapter = 4 * trainee.layout.size
    matrices = sum(4 * trainee.base.matrix(name).numel() for name in trainee.layout.matrices)
    assert _held(trainee) == 3 * adapter + matrices
    tokens = np.arange(5, 25)
    datum = Datum(tokens, tokens[:, None], {"weights": np.ones((20, 1), np.float32)}, flat=True)
    request = trainee.forward_backward([datum], *resolve("cross_entropy", {}), False)
    for run in request.passes:
        run()
    request.result()
    assert _held(trainee) == 3 * adapter + 2 * matrices


def test_a_silent_client_gives_back_its_models_and_samplers(model_folder: Path) -> None:
    """After its session is forgotten nothing refers to its weights, nor to its merged copies."""
    trainee = _trainee(model_folder)
    merged = MergedCache(trainee.base)
    registry = Registry(merged)
    session = registry.sessions[registry.create_session()]
    model = registry.open_model(session, 0, LoraConfig(rank=4), {})
    model.trainee = trainee
    snapshot = Snapshot(merged, (trainee.layout, trainee.flat.clone()))
    registry.open_sampler(session, 0, snapshot, None)
    gone = [weakref.ref(trainee), weakref.ref(snapshot), weakref.ref(snapshot.weights)]
    del trainee, snapshot, model
    registry.forget_silent_sessions(seconds=60)
    assert all(reference() is not None for reference in gone)
    session.last_seen -= 61
    del session
    registry.forget_silent_sessions(seconds=60)
    gc.collect()
    assert all(reference() is None for reference in gone)
    assert not registry.models
    assert not registry.samplers


def test_snapshots_beyond_the_bound_are_dropped_from_the_one_unused_longest(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for three adapters, the fourth ends the one that was used longest ago."""
    trainee = _trainee(model_folder)
    monkeypatch.setattr(registry_module, "SNAPSHOT_BYTES", 3 * 4 * trainee.layout.size)
    merged = MergedCache(trainee.base)
    registry = Registry(merged)
    session = registry.sessions[registry.create_session()]
    names = []
    for sequence in range(4):
        if sequence == 3:
            registry.sampler(names[0])
        snapshot = Snapshot(merged, (trainee.layout, trainee.flat.clone()))
        names.append(registry.open_sampler(session, sequence, snapshot, None))
    assert set(registry.samplers) == {names[0], names[2], names[3]}
