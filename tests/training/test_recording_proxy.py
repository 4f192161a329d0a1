"""The recording proxy against the SDK that is installed: every public method has its class."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest
import tinker

from harness.errors import CallRefused
from harness.training.recording_proxy import (
    UNKNOWN,
    RecordingProxy,
    Sampler,
    Saved,
    Service,
    Trainer,
    listed,
)

ADAM = tinker.AdamParams(learning_rate=0.1)
PROMPT = tinker.ModelInput.from_ints([1, 2])
PARAMS = tinker.SamplingParams(seed=5)

RECORDED = {
    Service: {
        "create_lora_training_client_async": (("base",), {"created"}),
        "create_training_client_from_state_with_optimizer_async": (("path",), set()),
        "create_sampling_client_async": (("path",), {"samplers"}),
    },
    Trainer: {
        "forward_backward_async": ((["datum"], "ppo", {"x": 1.0}), {"losses", "datums"}),
        "forward_backward_custom_async": ((["datum"], len), {"losses", "datums"}),
        "optim_step_async": ((ADAM,), {"optimizer"}),
        "load_state_async": (("path",), {"loaded"}),
        "load_state_with_optimizer_async": (("path",), {"loaded"}),
        "save_weights_for_sampler_async": (("name",), set()),
        "save_weights_and_get_sampling_client": ((), set()),
    },
    Sampler: {"sample_async": ((PROMPT, 1, PARAMS), {"samples", "responses"})},
    Saved: {"result_async": ((), set())},
}
"""Arguments of a call, and what of it is recorded; the others know of a version (see below)."""

PASSED = {
    Service: set(),
    Trainer: {"forward_async", "get_info_async", "save_state_async"},
    Sampler: {"compute_logprobs_async"},
    Saved: set(),
}

SDK = {
    Service: tinker.ServiceClient,
    Trainer: tinker.TrainingClient,
    Sampler: tinker.SamplingClient,
    Saved: tinker.APIFuture,
}

PUBLIC = [(proxy, name) for proxy, sdk in SDK.items() for name in dir(sdk) if name[0] != "_"]
CALLS = [(proxy, name) for proxy, calls in RECORDED.items() for name in calls]


class Client:
    """Answers any call of the SDK's, and remembers which was made."""

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    def __getattr__(self, name):
        sequence = SimpleNamespace(tokens=[3], logprobs=[-0.5], stop_reason="stop")
        answer = SimpleNamespace(path="saved", sequences=[sequence])

        def call(*arguments, **named):
            self.made.append((name, *arguments, *named.values()))
            return Client() if "client" in name or "save" in name else answer

        async def call_async(*arguments, **named):
            return call(*arguments, **named)

        return call_async if name.endswith("_async") else call


def behind(proxy, client, recording=None, *version):
    """A client behind its proxy."""
    recording = recording or RecordingProxy(client)
    return proxy(client, recording, *(version or ([] if proxy is Service else [0])))


def called(stand_in, name, *arguments):
    """What a call gives, awaited if it has to be."""
    result = getattr(stand_in, name)(*arguments)
    return asyncio.run(result) if inspect.isawaitable(result) else result


@pytest.mark.parametrize("proxy", SDK)
def test_what_may_be_called_is_written_down(proxy):
    """A call that is let through is named here, and the SDK has it."""
    assert listed(proxy) == PASSED[proxy] | RECORDED[proxy].keys()
    assert listed(proxy) <= set(dir(SDK[proxy]))


@pytest.mark.parametrize(("proxy", "name"), PUBLIC)
def test_every_public_method_of_the_sdk_is_listed_or_refused(proxy, name):
    """What is not listed is refused by one line that names it, and reaches no client."""
    client = Client()
    if name in PASSED[proxy] | RECORDED[proxy].keys():
        assert callable(getattr(behind(proxy, client), name))
        return
    with pytest.raises(CallRefused, match=rf"^{SDK[proxy].__name__}\.{name}: .*\Z") as refused:
        getattr(behind(proxy, client), name)
    assert client.made == []
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("proxy", SDK)
def test_a_method_that_a_later_sdk_brings_is_refused(proxy):
    """Nothing is let through for not being known."""
    with pytest.raises(CallRefused, match="rewind_async"):
        behind(proxy, Client()).rewind_async()


@pytest.mark.parametrize(("proxy", "name"), CALLS)
def test_a_recorded_call_reaches_the_client_and_is_seen(proxy, name):
    """One call is made, with the arguments that were given, and its kinds are recorded."""
    client = Client()
    recording = RecordingProxy(client)
    arguments, kinds = RECORDED[proxy][name]

    called(behind(proxy, client, recording), name, *arguments)

    ((made, *given),) = client.made
    assert made == name
    assert given[: len(arguments)] == list(arguments)
    assert {kind for kind, found in vars(recording.seen).items() if found} == kinds


@pytest.mark.parametrize(
    ("proxy", "name"), [(p, n) for p, names in PASSED.items() for n in sorted(names)]
)
def test_what_passes_is_not_recorded(proxy, name):
    """It reaches the client as it is, whatever its arguments, and leaves no trace."""
    client = Client()
    recording = RecordingProxy(client)

    called(behind(proxy, client, recording), name, "any", 1)

    assert client.made == [(name, "any", 1)]
    assert not any(vars(recording.seen).values())


@pytest.mark.parametrize(("proxy", "name"), CALLS)
def test_arguments_have_the_names_that_the_sdk_gives_them(proxy, name):
    """A call by keyword means the same with and without the proxy."""
    own = inspect.signature(getattr(proxy, name)).parameters
    named = [each for each, p in own.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    theirs = [*inspect.signature(getattr(SDK[proxy], name)).parameters]
    assert named == theirs[: len(named)]


def sampled_version(sampler, recording):
    """The version that a sample of this sampler is recorded with."""
    called(sampler, "sample_async", PROMPT, 1, PARAMS)
    return recording.take().samples[0]["version"]


def trainer_after(recording, client, updates):
    """A training client after so many updates."""
    trainer = behind(Trainer, client, recording)
    for _ in range(updates):
        called(trainer, "optim_step_async", ADAM)
    return trainer


def test_samples_carry_the_updates_behind_their_weights():
    """Counted where they are sent, for unnamed and for named samplers."""
    client = Client()
    recording = RecordingProxy(client)
    trainer = trainer_after(recording, client, 2)
    unnamed = called(trainer, "save_weights_and_get_sampling_client")
    future = called(trainer, "save_weights_for_sampler_async", "name")
    called(trainer, "optim_step_async", ADAM)
    asyncio.run(future.result_async())
    named = called(recording.client(), "create_sampling_client_async", "saved")
    assert recording.versions == {"saved": 2}
    assert [sampled_version(each, recording) for each in (unnamed, named)] == [2, 2]


@pytest.mark.parametrize("load", ["load_state_async", "load_state_with_optimizer_async"])
@pytest.mark.parametrize(("path", "version"), [("known", 3), ("of another arm", UNKNOWN)])
def test_weights_that_were_loaded_have_the_version_of_their_path(load, path, version):
    """Whatever was updated before, samples are of the state that was loaded."""
    client = Client()
    recording = RecordingProxy(client, {"known": 3})
    trainer = trainer_after(recording, client, 1)
    called(trainer, load, path)
    sampler = called(trainer, "save_weights_and_get_sampling_client")

    loaded = recording.seen.loaded
    assert loaded == [{"path": path, "optimizer": float(load != "load_state_async")}]
    assert sampled_version(sampler, recording) == version


@pytest.mark.parametrize(("path", "version"), [("known", 3), ("of another arm", UNKNOWN)])
def test_a_restored_client_goes_on_behind_its_path(path, version):
    """A client of a state that nobody knows is behind no number of updates."""
    client = Client()
    recording = RecordingProxy(client, {"known": 3})
    name = "create_training_client_from_state_with_optimizer_async"
    trainer = called(recording.client(), name, path)
    sampler = called(trainer, "save_weights_and_get_sampling_client")
    assert sampled_version(sampler, recording) == version
