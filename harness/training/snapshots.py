"""What an arm saves on the service, for as long as a step or a resumed run can need it.

Step t samples from the snapshot saved after update max(0, t - lag). What is needed no more is
deleted; what nobody comes back for expires by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.training.gather import gather

if TYPE_CHECKING:
    import tinker

KEPT_SECONDS = 30 * 24 * 3600
"""After this time the service may drop what an interrupted arm has left there."""

DELETE_SECONDS = 10.0
"""Longest wait for a deletion: what is not deleted then expires."""


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
            sent = await client.save_weights_for_sampler_async(name, KEPT_SECONDS)
            self._paths[version] = path = (await sent.result_async()).path
            self._clients[version] = await self._service.create_sampling_client_async(path)
        else:
            # the SDK's async form blocks the event loop
            self._clients[version] = await asyncio.to_thread(
                client.save_weights_and_get_sampling_client
            )

    def sampler(self, step: int) -> tuple[int, tinker.SamplingClient]:
        """The version that the step samples from, and its client; older ones are dropped.

        Raises:
            KeyError: that version was never saved or restored.
        """
        version = sampled_version(step, self._lag)
        for old in [known for known in self._clients if known < version]:
            del self._clients[old]
        return version, self._clients[version]

    def client(self, version: int) -> tinker.SamplingClient:
        """The sampler of a version that is still needed."""
        return self._clients[version]

    def paths(self, version: int) -> dict[str, str]:
        """The named snapshots that an arm needs after `version` updates, by their versions."""
        oldest = sampled_version(version, self._lag)
        return {str(kept): path for kept, path in self._paths.items() if kept >= oldest}

    async def restore(self, paths: dict[str, str], text: Sequence[int]) -> None:
        """Take up the snapshots that a checkpoint remembers; each reads `text`, to show itself.

        Raises:
            TinkerError: the service has not one of them.
        """
        import tinker

        async def opened(version: int, path: str) -> None:
            client = await self._service.create_sampling_client_async(path)
            # a service may look for the weights only when it is asked for something
            await client.compute_logprobs_async(tinker.ModelInput.from_ints(list(text[:2])))
            self._paths[version], self._clients[version] = path, client

        await gather(*(opened(int(version), path) for version, path in paths.items()))

    def outdated(self, version: int | None) -> list[str]:
        """Paths that an arm can't need after `version` updates, or has no need of at its end.

        Each is returned once: it is the caller's to delete.
        """
        needed = set() if version is None else {int(kept) for kept in self.paths(version)}
        return [self._paths.pop(known) for known in sorted(self._paths.keys() - needed)]


async def delete_saved(service: tinker.ServiceClient, paths: Sequence[str]) -> None:
    """Delete what was saved on the service; what it does not delete in time is left to expire."""
    if not paths:
        return

    async def delete(path: str) -> None:
        # a service without deletion keeps what it likes: no reason to stop training
        with contextlib.suppress(Exception):
            await rest.delete_checkpoint_from_tinker_path_async(path)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DELETE_SECONDS):
            # making the client asks the service, and blocks
            rest = await asyncio.to_thread(service.create_rest_client)
            await asyncio.gather(*map(delete, paths))
