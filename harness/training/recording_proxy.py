"""A service that notes what passes through it: the SDK's clients, with a proxy before each call.

What a loop means to send is in its code; what it sends is only here. The clients behind it do their
work undisturbed, and calls that nothing is said of here pass through unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from harness.traces import CUSTOM, Settings, as_settings

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class Response:
    """One sampled sequence: the tokens of its prompt, its own, and a log-prob for each of these.

    `seed` is that of its request, `stop` says why it ended.
    """

    seed: int
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    stop: str


@dataclass
class RequestTrace:
    """What was asked for since it was last taken, and what came back."""

    created: list[Settings] = field(default_factory=list)
    samplers: list[Settings] = field(default_factory=list)
    samples: list[Settings] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    losses: list[Settings] = field(default_factory=list)
    datums: list[tinker.Datum] = field(default_factory=list)
    optimizer: list[Settings] = field(default_factory=list)

    def by_seed(self) -> dict[int, list[Response]]:
        """The responses by the seed of their request."""
        found: dict[int, list[Response]] = {}
        for response in self.responses:
            found.setdefault(response.seed, []).append(response)
        return found


class RecordingProxy:
    """Stands before a service client. `seen` is what was noted since `take`.

    `versions` says of states and samplers, by path, how many updates are behind them: of what an
    earlier process saved the proxy has to be given it.
    """

    def __init__(
        self, service: tinker.ServiceClient, versions: Mapping[str, int] | None = None
    ) -> None:
        self._service = service
        self._versions = dict(versions or {})
        self.seen = RequestTrace()

    def client(self) -> tinker.ServiceClient:
        """The proxy in the place of the service: it has all that the service has."""
        return cast("tinker.ServiceClient", self)

    def take(self) -> RequestTrace:
        """What was seen since this was last called."""
        seen, self.seen = self.seen, RequestTrace()
        return seen

    def __getattr__(self, name: str) -> Any:  # the SDK's attributes, whatever their type
        return getattr(self._service, name)

    async def create_lora_training_client_async(
        self, base_model: str, **settings: Any
    ) -> tinker.TrainingClient:
        """Note with what a training client is created."""
        self.seen.created.append(as_settings({"base_model": base_model, **settings}))
        client = await self._service.create_lora_training_client_async(base_model, **settings)
        return self._trainer(client, 0)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str
    ) -> tinker.TrainingClient:
        """A client that goes on behind the updates that its path is known for, else behind -1."""
        service = self._service
        client = await service.create_training_client_from_state_with_optimizer_async(path)
        return self._trainer(client, self._versions.get(path, -1))

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> tinker.SamplingClient:
        """Note what a sampler is created on, and know which version its path was saved as."""
        asked = {"model_path": model_path, "base_model": base_model}
        self.seen.samplers.append(as_settings(asked))
        client = await self._service.create_sampling_client_async(model_path, base_model)
        return self.sampler(client, None if model_path is None else self._versions.get(model_path))

    def sampler(self, client: tinker.SamplingClient, version: int | None) -> tinker.SamplingClient:
        """A sampler of weights after `version` updates, with a proxy before it."""
        return cast("tinker.SamplingClient", _Sampler(client, self, version))

    def _trainer(self, client: tinker.TrainingClient, updates: int) -> tinker.TrainingClient:
        return cast("tinker.TrainingClient", _Trainer(client, self, self._versions, updates))


class _Trainer:
    def __init__(
        self,
        client: tinker.TrainingClient,
        proxy: RecordingProxy,
        versions: dict[str, int],
        updates: int,
    ) -> None:
        self._client, self._witness, self._versions = client, proxy, versions
        self._updates = updates

    def __getattr__(self, name: str) -> Any:  # the SDK's attributes, whatever their type
        return getattr(self._client, name)

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss: Any, config: dict[str, float] | None = None
    ) -> Any:
        seen = self._witness.seen
        bounds = {f"loss.{key}": value for key, value in (config or {}).items()}
        seen.losses.append(as_settings({"loss": loss, **bounds}))
        seen.datums += data
        return await self._client.forward_backward_async(data, loss, config)

    async def forward_backward_custom_async(
        self, data: list[tinker.Datum], loss: Callable[..., Any]
    ) -> Any:
        self._witness.seen.losses.append({"loss": CUSTOM})
        self._witness.seen.datums += data
        return await self._client.forward_backward_custom_async(data, loss)

    async def optim_step_async(self, adam: tinker.AdamParams) -> Any:
        self._witness.seen.optimizer.append(as_settings(adam.model_dump()))
        self._updates += 1
        return await self._client.optim_step_async(adam)

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None
    ) -> Any:
        version = self._updates
        future = await self._client.save_weights_for_sampler_async(name, ttl_seconds)
        return _Saved(future, self, version)

    def save_weights_and_get_sampling_client(self) -> tinker.SamplingClient:
        version = self._updates
        return self._witness.sampler(self._client.save_weights_and_get_sampling_client(), version)

    def saved(self, path: str, version: int) -> None:
        self._versions[path] = version


class _Saved:
    def __init__(self, future: Any, trainer: _Trainer, version: int) -> None:
        self._future, self._trainer, self._version = future, trainer, version

    async def result_async(self) -> Any:
        result = await self._future.result_async()
        self._trainer.saved(result.path, self._version)
        return result


class _Sampler:
    def __init__(
        self, client: tinker.SamplingClient, proxy: RecordingProxy, version: int | None
    ) -> None:
        self._client, self._witness, self._version = client, proxy, version

    def __getattr__(self, name: str) -> Any:  # the SDK's attributes, whatever their type
        return getattr(self._client, name)

    async def sample_async(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
    ) -> tinker.SampleResponse:
        asked = {"num_samples": num_samples, "version": self._version}
        seen = self._witness.seen
        seen.samples.append(as_settings({**sampling_params.model_dump(), **asked}))
        response = await self._client.sample_async(
            prompt=prompt, num_samples=num_samples, sampling_params=sampling_params
        )
        seed = -1 if sampling_params.seed is None else sampling_params.seed
        seen.responses += [
            Response(
                seed,
                prompt.to_ints(),
                list(each.tokens),
                list(each.logprobs or ()),
                str(each.stop_reason),
            )
            for each in response.sequences
        ]
        return response
