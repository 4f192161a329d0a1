"""Sampler snapshots by version: step t samples from the one saved after update max(0, t - lag)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tinker


def sampled_version(step: int, lag: int) -> int:
    """The version that a step samples from: exactly `lag` updates old once the ramp is over."""
    return max(0, step - lag)


class Snapshots:
    """The sampler snapshots that an arm still needs.

    Without lag a snapshot lives for one step and is not named. With lag it is saved under its
    version, so that a resumed run samples from the same weights. `named` saves it so without lag
    too, for arms that are compared with lagged ones: their weights then take the same way.
    """

    def __init__(self, service: tinker.ServiceClient, lag: int, named: bool = False) -> None:
        self._service = service
        self._lag = lag
        self._named = named or lag > 0
        self._clients: dict[int, tinker.SamplingClient] = {}
        self._paths: dict[int, str] = {}

    async def save(self, client: tinker.TrainingClient, version: int) -> None:
        """Keep the client's weights as `version`, unless they are kept already."""
        if version in self._clients:
            return
        if self._named:
            name = f"version-{version:06d}"
            saved = await (await client.save_weights_for_sampler_async(name)).result_async()
            self._paths[version] = saved.path
            self._clients[version] = await self._service.create_sampling_client_async(saved.path)
        else:
            # the SDK's async form blocks the event loop
            self._clients[version] = await asyncio.to_thread(
                client.save_weights_and_get_sampling_client
            )

    def sampler(self, step: int) -> tuple[int, tinker.SamplingClient]:
        """The version that the step samples from, and its client; older ones are let go.

        Raises:
            KeyError: that version was never saved or restored.
        """
        version = sampled_version(step, self._lag)
        for old in [known for known in self._clients if known < version]:
            del self._clients[old]
            self._paths.pop(old, None)
        return version, self._clients[version]

    def client(self, version: int) -> tinker.SamplingClient:
        """The sampler of a version that is still needed."""
        return self._clients[version]

    def paths(self) -> dict[str, str]:
        """What a checkpoint has to remember: named snapshots by version."""
        return {str(version): path for version, path in self._paths.items()}

    async def restore(self, paths: dict[str, str]) -> None:
        """Take up the snapshots that a checkpoint remembers."""
        for version, path in paths.items():
            self._paths[int(version)] = path
            self._clients[int(version)] = await self._service.create_sampling_client_async(path)
