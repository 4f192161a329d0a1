import asyncio

import pytest
import tinker
from service_doubles import ScriptedTrainer

from harness.training.snapshots import Snapshots, delete_saved, sampled_version


def trained(service, snapshots, versions):
    """A client whose weights were saved at each of these versions."""
    client = ScriptedTrainer(service, 0.0, 0.0, 0)

    async def save():
        for version in versions:
            client.weights, client.updates = float(version), version
            await snapshots.save(client, version)

    asyncio.run(save())
    return client


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_step_t_samples_from_update_t_minus_lag(service, lag):
    """Exactly `lag` updates old once the ramp is over: max(0, t - lag), never 'at most'."""
    snapshots = Snapshots(service, lag)
    for step in range(10):
        trained(service, snapshots, [step])

        version, sampler = snapshots.sampler(step)

        assert version == sampled_version(step, lag) == max(0, step - lag)
        assert sampler.weights == float(version)


@pytest.mark.parametrize("lag", [1, 4])
def test_a_restored_arm_samples_from_the_same_versions(service, lag):
    """What a checkpoint remembers is all that later steps need, and nothing older."""
    snapshots = Snapshots(service, lag)
    trained(service, snapshots, range(7))
    snapshots.sampler(6)
    paths = snapshots.paths(6)
    restored = Snapshots(service, lag)

    asyncio.run(restored.restore(paths, [5, 7, 9]))

    assert sorted(map(int, paths)) == list(range(6 - lag, 7))
    for step in range(6, 6 + lag + 1):
        version, sampler = restored.sampler(step)
        assert (version, sampler.weights) == (step - lag, float(step - lag))


@pytest.mark.parametrize("lag", [1, 4])
def test_what_no_step_or_resumed_arm_can_need_is_outdated_once(service, lag):
    """A resumed arm samples from 6 - lag and later; at the arm's end nothing is needed."""
    snapshots = Snapshots(service, lag)
    trained(service, snapshots, range(7))

    def versions(paths):
        return [int(path.rpartition("-")[2]) for path in paths]

    assert versions(snapshots.outdated(6)) == list(range(6 - lag))
    assert snapshots.outdated(6) == []
    assert versions(snapshots.outdated(None)) == list(range(6 - lag, 7))


def test_what_is_deleted_is_gone_from_the_service(service):
    """One request a path."""
    snapshots = Snapshots(service, 1)
    trained(service, snapshots, range(3))

    asyncio.run(delete_saved(service, snapshots.outdated(2)))

    assert [path.rpartition("-")[2] for path in service.saved] == ["000001", "000002"]
    assert len(service.named("delete")) == 1


@pytest.mark.parametrize("answer", ["refused", "never"])
def test_a_service_that_deletes_nothing_stops_nothing(service, monkeypatch, answer):
    """Whatever a deletion runs into, and if it is never answered: what is left expires."""

    async def deleted(_path):
        if answer == "refused":
            raise tinker.TinkerError("405: no such method")
        await asyncio.sleep(60)

    monkeypatch.setattr(service, "delete_checkpoint_from_tinker_path_async", deleted)
    monkeypatch.setattr("harness.training.snapshots.DELETE_SECONDS", 0.05)

    asyncio.run(delete_saved(service, ["tinker://run/sampler_weights/version-000001"]))


def test_without_lag_a_snapshot_is_not_named(service):
    """A snapshot that lives for one step leaves nothing behind on the service."""
    snapshots = Snapshots(service, 0)

    trained(service, snapshots, range(3))

    assert snapshots.paths(3) == {}
    assert service.saved == {}


def test_a_version_is_saved_once(service):
    """A resumed arm does not save again what it restored."""
    snapshots = Snapshots(service, 1)

    trained(service, snapshots, [0, 0, 1, 1])

    assert len(service.named("save_sampler")) == 2


def test_a_version_that_was_never_saved_is_not_replaced_by_another(service):
    """A missing snapshot is an error; the nearest one would be another lag."""
    snapshots = Snapshots(service, 1)
    trained(service, snapshots, [0, 3])

    with pytest.raises(KeyError):
        snapshots.sampler(3)
