import asyncio

import httpx
import pytest
import tinker
from service_doubles import CARD

from harness.cards import load_experiment
from harness.errors import CardError, RunError, ServiceError, ServiceRefused, ServiceUnreachable
from harness.protocol import services
from harness.protocol.services import Service
from harness.training.service import ServiceAddress
from harness.training.streams import arm_order

EMBEDDED = ServiceAddress("http://127.0.0.1:9", "embedded", "tml-x")
URL = "https://example.org"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """`make(scale)` makes a service; `make.calls` notes what was started, asked and connected."""
    calls = []

    def noted(name, answer):
        def call(*arguments):
            calls.append((name, *(a for a in arguments if isinstance(a, ServiceAddress))))
            return answer

        return call

    monkeypatch.setattr(services, "start_or_join", noted("start", EMBEDDED))
    monkeypatch.setattr(services, "probe", noted("probe", None))
    monkeypatch.setattr(services, "connect", noted("connect", "the SDK's client"))
    monkeypatch.setattr(services, "end_heartbeats", noted("end_heartbeats", None))
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    made = []

    def service(scale="embedded"):
        made.append(Service(load_experiment(CARD, scale), tmp_path, 1))
        return made[-1]

    service.calls = calls
    yield service
    for each in made:
        each.close()


@pytest.fixture
def remote(make, monkeypatch):
    """`make`, with a service in the environment."""
    monkeypatch.setenv("TINKER_BASE_URL", URL)
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    return make


def test_nothing_is_started_before_it_is_needed(make):
    """A rerun from the store asks only who would serve."""
    service = make()

    assert service.embedded
    assert service.identity()["kind"] == "embedded"
    assert make.calls == []


def test_the_embedded_engine_is_started_probed_and_connected_once(make):
    """Whoever asks for the client again gets the same."""
    service = make()

    assert service.client() == service.client() == "the SDK's client"
    assert make.calls == [("start",), ("probe", EMBEDDED), ("connect", EMBEDDED)]


@pytest.mark.parametrize("scale", ["embedded", "full"])
def test_a_service_in_the_environment_trains_at_every_scale(remote, scale):
    """No engine is started; the key is in no identity."""
    service = remote(scale)
    service.client()

    assert not service.embedded
    assert service.identity() == {"kind": "remote", "base_url": URL}
    assert [call[0] for call in remote.calls] == ["probe", "connect"]
    assert remote.calls[0][1].base_url == URL


def test_a_scale_that_needs_a_service_says_so(make):
    """`full` without TINKER_BASE_URL: which variables, or which scale instead."""
    with pytest.raises(
        ServiceUnreachable, match=r"scale full needs .* TINKER_BASE_URL and TINKER_API_KEY"
    ):
        make("full").client()


def test_a_url_without_a_key_is_refused_when_the_run_opens(make, monkeypatch):
    """Before anything is sampled or started."""
    monkeypatch.setenv("TINKER_BASE_URL", URL)

    with pytest.raises(ServiceRefused, match="TINKER_API_KEY is not set"):
        make()


def test_work_gives_its_result(make, monkeypatch):
    """Work runs on the process's own loop, the same each time."""
    monkeypatch.setattr(services, "watched", lambda work, *_arguments: work)
    service = make()
    service.client()

    async def loop():
        return asyncio.get_running_loop()

    assert service.run(loop()) is service.run(loop())


@pytest.mark.parametrize(
    "error",
    [
        tinker.TinkerError("no such\n  checkpoint"),
        tinker.APIConnectionError(request=None, message="no such\n  checkpoint"),
    ],
)
def test_an_error_of_the_sdk_is_told_in_one_line(make, monkeypatch, error):
    """The service, the kind of error and what to do; the SDK's own error is its cause."""
    monkeypatch.setattr(services, "watched", lambda work, *_arguments: work)
    service = make()
    service.client()

    async def work():
        raise error

    with pytest.raises(ServiceError) as caught:
        service.run(work())

    message = str(caught.value)
    assert message.startswith(f"service {EMBEDDED.base_url}: {type(error).__name__}: no such check")
    assert "run again" in message
    assert "\n" not in message
    assert caught.value.__cause__ is error


def status_error(status):
    """What the SDK raises when a service answers with this status, quoting the key."""
    response = httpx.Response(status, request=httpx.Request("POST", EMBEDDED.base_url))
    return tinker.APIStatusError(f"{status}: no {EMBEDDED.api_key}", response=response, body=None)


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "check TINKER_API_KEY"), (402, "top it up"), (403, "may do"), (429, "wait"),
     (404, "look at the service's log")],
)  # fmt: skip
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_status_says_what_helps_and_the_key_is_not_shown(
    make, monkeypatch, status, said, wrapped
):
    """Whether the status comes by itself or as the cause of what the SDK raises of a result."""
    monkeypatch.setattr(services, "watched", lambda work, *_arguments: work)
    service = make()
    service.client()

    async def work():
        if not wrapped:
            raise status_error(status)
        raise tinker.TinkerError("no result") from status_error(status)

    with pytest.raises(ServiceError, match=said) as caught:
        service.run(work())

    assert EMBEDDED.api_key not in str(caught.value)


def test_what_the_sdk_raises_that_is_no_error_of_its_own_is_told_in_one_line(make, monkeypatch):
    """It checks arguments and results by ValueError and assert."""
    monkeypatch.setattr(services, "watched", lambda work, *_arguments: work)
    service = make()
    service.client()

    async def work():
        await tinker.ServiceClient.create_sampling_client_async(object())

    with pytest.raises(ServiceError, match="ValueError: Either model_path or base_model"):
        service.run(work())


def test_a_mistake_in_this_project_is_not_blamed_on_the_service(make, monkeypatch):
    """An error of our own keeps its traceback, also where the SDK has called us."""
    monkeypatch.setattr(services, "watched", lambda work, *_arguments: work)
    service = make()
    service.client()

    async def work():
        arm_order(0, 4, 0, 8, reuse=True)

    with pytest.raises(ZeroDivisionError):
        service.run(work())


def test_the_harness_own_errors_pass_through(make, monkeypatch):
    """What already names its cure is not dressed up."""
    monkeypatch.setattr(services, "watched", lambda work, *_arguments: work)
    service = make()
    service.client()

    async def work():
        raise RunError("a reward is nan")

    with pytest.raises(RunError, match=r"^a reward is nan$"):
        service.run(work())


def test_each_committed_model_has_an_engine_of_its_own():
    """Two experiments of one session may train different models at the same time."""
    from harness.embedded import (
        MODEL_DIR,
        MODEL_NAME,
        SEARCH_MODEL_DIR,
        SEARCH_MODEL_NAME,
        model_dir,
    )

    assert services.engine_folder(MODEL_NAME) == "engine"
    assert services.engine_folder(SEARCH_MODEL_NAME) == "engine-search_model"
    assert (model_dir(MODEL_NAME), model_dir(SEARCH_MODEL_NAME)) == (MODEL_DIR, SEARCH_MODEL_DIR)


def test_a_model_that_is_not_embedded_is_refused():
    """Another model under its name would be another experiment; the line says which there are."""
    from harness.embedded import MODELS, model_dir

    line = r"^base_model 'a/model' is not embedded, (.*) are; name one of them, or set TINKER_BASE"
    with pytest.raises(CardError, match=line) as refused:
        model_dir("a/model")
    assert all(name in str(refused.value) for name in MODELS)
