"""A recording proxy before the SDK's clients: what is asked of a service, and what it answers.

What a loop means to send is in its code; what it sends is only here. Each client lists what may be
called on it: its own methods record what changes weights or samples and then call the SDK's, names
in `passed` go through as they are, and every other call is refused. The SDK's synchronous forms are
refused too, but for one that has no asynchronous form that leaves the event loop free.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from harness.errors import CallRefused
from harness.traces import CUSTOM, Settings, as_settings

if TYPE_CHECKING:
    import tinker

UNKNOWN = -1
"""The updates behind a state that nobody knows of."""


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
    loaded: list[Settings] = field(default_factory=list)
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
    """Stands before a service client. `seen` is what was recorded since `take`.

    `versions` says of states and samplers, by path, how many updates are behind them: of what an
    earlier process saved, the proxy has to be given the count.
    """

    def __init__(
        self, service: tinker.ServiceClient, versions: Mapping[str, int] | None = None
    ) -> None:
        self._service = service
        self.versions = dict(versions or {})
        self.seen = RequestTrace()

    def client(self) -> tinker.ServiceClient:
        """A client in the place of the service's, and so is every client that it makes."""
        return cast("tinker.ServiceClient", Service(self._service, self))

    def take(self) -> RequestTrace:
        """What was seen since this was last called."""
        seen, self.seen = self.seen, RequestTrace()
        return seen


class _Listed:
    """A client of which only what is listed may be called."""

    of: ClassVar[str]
    """The SDK's name of the client."""
    passed: ClassVar[frozenset[str]] = frozenset()
    """What is called unrecorded: it changes neither weights nor samples."""
    _client: Any  # one of the SDK's clients or futures

    def __getattr__(self, name: str) -> Any:  # the SDK's methods, whatever their type
        # Python and its libraries ask any object for such names
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self.passed:
            return getattr(self._client, name)
        raise CallRefused(
            f"{self.of}.{name}: not among the calls that are recorded or may pass unrecorded; call "
            f"one of {', '.join(sorted(listed(type(self))))}"
        )


def listed(proxy: type[_Listed]) -> frozenset[str]:
    """What may be called on the client behind a proxy: what is passed, and its own methods."""
    own = {name for name, value in vars(proxy).items() if inspect.isfunction(value)}
    return proxy.passed | {name for name in own if not name.startswith("_")}


class Service(_Listed):
    """Stands before a service client."""

    of = "ServiceClient"

    def __init__(self, client: tinker.ServiceClient, proxy: RecordingProxy) -> None:
        self._client, self._proxy = client, proxy

    async def create_lora_training_client_async(
        self, base_model: str, **settings: Any
    ) -> tinker.TrainingClient:
        """Record with what a training client is created."""
        self._proxy.seen.created.append(as_settings({"base_model": base_model, **settings}))
        client = await self._client.create_lora_training_client_async(base_model, **settings)
        return cast("tinker.TrainingClient", Trainer(client, self._proxy, 0))

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str
    ) -> tinker.TrainingClient:
        """A client that goes on behind the updates that its path is known for, or UNKNOWN ones."""
        service = self._client
        client = await service.create_training_client_from_state_with_optimizer_async(path)
        updates = self._proxy.versions.get(path, UNKNOWN)
        return cast("tinker.TrainingClient", Trainer(client, self._proxy, updates))

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> tinker.SamplingClient:
        """Record what a sampler is created on, and know which version its path was saved as."""
        asked = {"model_path": model_path, "base_model": base_model}
        self._proxy.seen.samplers.append(as_settings(asked))
        client = await self._client.create_sampling_client_async(model_path, base_model)
        version = None if model_path is None else self._proxy.versions.get(model_path)
        return cast("tinker.SamplingClient", Sampler(client, self._proxy, version))


class Trainer(_Listed):
    """Stands before a training client, whose weights are those after `updates` updates."""

    of = "TrainingClient"
    passed = frozenset({"forward_async", "get_info_async", "save_state_async"})

    def __init__(self, client: tinker.TrainingClient, proxy: RecordingProxy, updates: int) -> None:
        self._client, self._proxy, self._updates = client, proxy, updates

    async def forward_backward_async(
        self,
        data: list[tinker.Datum],
        loss_fn: Any,  # one of the SDK's literals
        loss_fn_config: dict[str, float] | None = None,
    ) -> Any:
        """Record loss and datums."""
        seen = self._proxy.seen
        bounds = {f"loss.{key}": value for key, value in (loss_fn_config or {}).items()}
        seen.losses.append(as_settings({"loss": loss_fn, **bounds}))
        seen.datums += data
        return await self._client.forward_backward_async(data, loss_fn, loss_fn_config)

    async def forward_backward_custom_async(
        self, data: list[tinker.Datum], loss_fn: Callable[..., Any]
    ) -> Any:
        """Record the datums, and that the loss is this client's."""
        self._proxy.seen.losses.append({"loss": CUSTOM})
        self._proxy.seen.datums += data
        return await self._client.forward_backward_custom_async(data, loss_fn)

    async def optim_step_async(self, adam_params: tinker.AdamParams) -> Any:
        """Record the update."""
        self._proxy.seen.optimizer.append(as_settings(adam_params.model_dump()))
        self._updates += 1
        return await self._client.optim_step_async(adam_params)

    async def load_state_async(self, path: str) -> Any:
        """Record whose weights take the place of the client's."""
        self._load(path, optimizer=False)
        return await self._client.load_state_async(path)

    async def load_state_with_optimizer_async(self, path: str) -> Any:
        """Record whose weights and moments take the place of the client's."""
        self._load(path, optimizer=True)
        return await self._client.load_state_with_optimizer_async(path)

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None
    ) -> Any:
        """Know the version under the path that the answer names."""
        version = self._updates
        future = await self._client.save_weights_for_sampler_async(name, ttl_seconds)
        return Saved(future, self._proxy, version)

    def save_weights_and_get_sampling_client(self) -> tinker.SamplingClient:
        """Know the version of the sampler. The SDK's asynchronous form blocks the event loop."""
        version = self._updates
        client = self._client.save_weights_and_get_sampling_client()
        return cast("tinker.SamplingClient", Sampler(client, self._proxy, version))

    def _load(self, path: str, optimizer: bool) -> None:
        self._proxy.seen.loaded.append(as_settings({"path": path, "optimizer": optimizer}))
        self._updates = self._proxy.versions.get(path, UNKNOWN)


class Saved(_Listed):
    """Stands before the future of saved weights; other futures are the SDK's own."""

    of = "APIFuture"

    def __init__(self, future: Any, proxy: RecordingProxy, version: int) -> None:
        self._client, self._proxy, self._version = future, proxy, version

    async def result_async(self) -> Any:
        """Know the path of the weights."""
        result = await self._client.result_async()
        self._proxy.versions[result.path] = self._version
        return result


class Sampler(_Listed):
    """Stands before a sampling client of weights after `version` updates, None if unknown."""

    of = "SamplingClient"
    passed = frozenset({"compute_logprobs_async"})

    def __init__(
        self, client: tinker.SamplingClient, proxy: RecordingProxy, version: int | None
    ) -> None:
        self._client, self._proxy, self._version = client, proxy, version

    async def sample_async(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
    ) -> tinker.SampleResponse:
        """Record the request, and every sequence that came back."""
        asked = {"num_samples": num_samples, "version": self._version}
        seen = self._proxy.seen
        seen.samples.append(as_settings({**sampling_params.model_dump(), **asked}))
        response: tinker.SampleResponse = await self._client.sample_async(
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
