import asyncio
import gc
import json
import os
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import pytest
import tinker
from tinker.types import RequestErrorCategory

from harness.errors import ServiceRefused, ServiceUnreachable
from harness.training.service import (
    ServiceAddress,
    connect,
    end_background_loop,
    leave,
    probe,
    remote_address,
    says_no,
)

KEY = "tml-this-is-secret"
MODEL = "some/model"


class Answers(BaseHTTPRequestHandler):
    """Answers by path from the server's `script`: a status, a body and a delay in seconds."""

    def do_GET(self):
        """One scripted answer."""
        self.server.asked.append((self.path, self.headers.get("X-API-Key")))
        status, body, delay = self.server.script[self.path.rpartition("/")[2]]
        time.sleep(delay)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Nothing is written to the terminal."""


@pytest.fixture
def server():
    """A local HTTP server that is up, takes every key and serves MODEL."""
    local = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    local.daemon_threads = True
    local.handle_error = lambda *_arguments: None  # a client that has gone away is expected
    local.asked = []
    local.script = {
        "healthz": (200, {"status": "ok"}, 0.0),
        "get_server_capabilities": (200, {"supported_models": [{"model_name": MODEL}]}, 0.0),
    }
    local.address = ServiceAddress(f"http://127.0.0.1:{local.server_port}", "remote", KEY)
    thread = threading.Thread(target=local.serve_forever, args=(0.02,))
    thread.start()
    yield local
    local.shutdown()
    thread.join()
    local.server_close()


def refused(server, error, seconds=5.0, model=MODEL):
    """The one-line message of a probe that must fail; it never holds the key."""
    with pytest.raises(error) as caught:
        probe(server.address, model, seconds)
    message = str(caught.value)
    assert KEY not in message
    assert "\n" not in message
    assert server.address.base_url in message
    return message


def test_a_service_that_is_up_takes_the_key_and_serves_the_model_passes(server):
    """Both questions are asked, with the key in the SDK's header."""
    probe(server.address, MODEL)

    assert server.asked == [
        ("/api/v1/healthz", KEY),
        ("/api/v1/get_server_capabilities", KEY),
    ]


@pytest.mark.parametrize(
    ("more", "exact"),
    [
        ({}, False),
        ({"determinism": None}, False),
        ({"determinism": {"bit_exact": False, "noise_nats": 1e-6}}, False),
        ({"determinism": {"bit_exact": "yes"}}, False),
        ({"determinism": {"bit_exact": True, "noise_nats": 0.0}}, True),
    ],
)
def test_equal_bits_are_expected_only_of_a_service_that_promises_them(server, more, exact):
    """A service that says nothing of it, or something else, is held to a tolerance."""
    body = {"supported_models": [{"model_name": MODEL}], **more}
    server.script["get_server_capabilities"] = (200, body, 0.0)

    assert probe(server.address, MODEL) is exact


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("what", ["healthz", "get_server_capabilities"])
def test_a_key_that_is_not_accepted_is_refused(server, status, what):
    """The message names the status and the variable to check."""
    server.script[what] = (status, {"detail": f"bad key {KEY}"}, 0.0)

    assert f"answered {status} to {what}: the key is not accepted; check TINKER_API_KEY" in refused(
        server, ServiceRefused
    )


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_server_of_another_kind_is_refused(server, status):
    """Whatever answers something else is no Tinker-compatible service."""
    server.script["healthz"] = (status, {}, 0.0)

    assert f"answered {status} to healthz; is it a Tinker" in refused(server, ServiceRefused)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_service_that_takes_no_requests_now_is_not_called_another_kind(server, status):
    """Overload and restarts pass: the line says to come back."""
    server.script["get_server_capabilities"] = (status, {}, 0.0)

    assert f"answered {status} to get_server_capabilities: it takes no requests now" in refused(
        server, ServiceUnreachable
    )


@pytest.mark.parametrize(
    "body", [b"<html>hello</html>", {}, [], {"supported_models": None}, {"supported_models": [{}]}]
)
def test_an_answer_that_lists_no_models_is_refused(server, body):
    """A web page that answers 200 to everything gets one line, not a traceback."""
    server.script["get_server_capabilities"] = (200, body, 0.0)

    assert "lists no supported_models" in refused(server, ServiceRefused)


def test_a_service_that_lacks_the_model_names_those_it_has(server):
    """The message says what to choose from."""
    message = refused(server, ServiceRefused, model="another/model")

    assert f"does not serve 'another/model'; it serves {MODEL}" in message


@pytest.mark.parametrize("what", ["healthz", "get_server_capabilities"])
def test_a_service_that_does_not_answer_in_time_is_unreachable(server, what):
    """The bound holds for both questions together, and is named."""
    server.script[what] = (200, {"supported_models": []}, 1.0)

    assert "no answer within 0.3 s" in refused(server, ServiceUnreachable, 0.3)


def test_slow_answers_share_one_bound(server):
    """Two answers of 0.3 s each do not fit in 0.4 s."""
    server.script["healthz"] = (200, {}, 0.3)
    server.script["get_server_capabilities"] = (200, {"supported_models": []}, 0.3)

    refused(server, ServiceUnreachable, 0.4)


def test_a_port_on_which_nobody_listens_is_unreachable(server):
    """A refused connection is told at once."""
    server.address = ServiceAddress("http://127.0.0.1:1", "remote", KEY)

    assert "start it or correct TINKER_BASE_URL" in refused(server, ServiceUnreachable)


def test_a_proxy_in_the_environment_does_not_capture_loopback(server, monkeypatch):
    """A proxy that leads nowhere is not asked for a local service."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    probe(server.address, MODEL)


def test_the_key_is_in_no_repr():
    """An address can be logged."""
    address = ServiceAddress("https://example.org", "remote", KEY)

    assert KEY not in repr(address)
    assert KEY not in str(address)
    assert KEY not in f"{address}"


def test_no_url_is_no_remote_service():
    """Without TINKER_BASE_URL the embedded engine trains, whatever key is set."""
    assert remote_address({}) is None
    assert remote_address({"TINKER_BASE_URL": " ", "TINKER_API_KEY": KEY}) is None


@pytest.mark.parametrize("key", [KEY, "eyJhbGciOi"])
@pytest.mark.parametrize("url", ["https://example.org", "http://127.0.0.1:80/path"])
def test_a_url_and_a_key_are_a_remote_service(url, key):
    """A slash at the end makes no other service: it would be another content key."""
    address = remote_address({"TINKER_BASE_URL": f"{url}/", "TINKER_API_KEY": key})

    assert address == ServiceAddress(url, "remote", key)


@pytest.mark.parametrize(
    ("key", "said"), [("", "is not set"), ("secret-key-1", "does not start with 'tml-' or 'eyJ'")]
)
def test_a_url_without_a_usable_key_is_refused(key, said):
    """The SDK would refuse it later; the key itself is not shown."""
    with pytest.raises(ServiceRefused, match=f"TINKER_API_KEY {said}") as caught:
        remote_address({"TINKER_BASE_URL": "https://example.org", "TINKER_API_KEY": key})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "example.org",
        "localhost:8000",
        "ftp://example.org",
        "http://",
        "http://[::1",
        "http://example.org:99999",
        "https://user:secret@example.org",
        "https://example.org/?token=secret",
    ],
)
def test_a_url_that_is_none_is_refused(url):
    """What can't be reached, or would put a secret into stored keys, is told in one line."""
    with pytest.raises(ServiceRefused, match="TINKER_BASE_URL is not of the form") as caught:
        remote_address({"TINKER_BASE_URL": url, "TINKER_API_KEY": KEY})
    assert "secret" not in str(caught.value)


def sdk_error(status):
    """What the SDK raises of a status, of a failed request (a word), and of itself (None)."""
    if isinstance(status, str):
        return tinker.RequestFailedError("no", "request", RequestErrorCategory(status))
    if status is None:
        return ValueError("model_path must start with 'tinker://'")
    response = httpx.Response(status, request=httpx.Request("POST", "http://127.0.0.1:9"))
    return tinker.APIStatusError("no", response=response, body=None)


@pytest.mark.parametrize("status", [400, 404, 410, 422, "user", "unknown", None])
def test_a_service_that_cannot_do_it_says_no(status):
    """There is no use in asking again."""
    assert says_no(sdk_error(status))


@pytest.mark.parametrize("status", [401, 402, 403, 429, 500, 503, "server"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_service_that_fails_or_refuses_the_client_says_nothing_of_what_it_can_do(status, wrapped):
    """Neither a fallback nor a fresh start may follow from what passes."""
    error = sdk_error(status)
    if wrapped and not isinstance(status, str):
        of_a_result = ValueError("Error retrieving result")
        of_a_result.__cause__, error = error, of_a_result

    assert not says_no(error)


@pytest.fixture
def connected(monkeypatch):
    """What the SDK's client is made with, and the environment that it finds."""
    ended = []

    class Client:
        def __init__(self, **arguments):
            self.arguments, self.environment = arguments, dict(os.environ)

    monkeypatch.setattr("tinker.ServiceClient", Client)
    monkeypatch.setattr("atexit.register", lambda _end, client: ended.append(client))
    for name in ("NO_PROXY", "no_proxy", "TINKER_TELEMETRY"):
        monkeypatch.setenv(name, "")  # restored when the test ends, whatever is put there
        monkeypatch.delenv(name)

    def connecting(url, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        client = connect(ServiceAddress(url, "remote", KEY))
        assert client.arguments == {"base_url": url, "api_key": KEY}
        assert ended == [client]
        names = ("NO_PROXY", "no_proxy", "TINKER_TELEMETRY")
        return tuple(client.environment.get(name) for name in names)

    return connecting


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1:9", "[::1]:9"])
def test_connecting_to_loopback_keeps_proxies_off_it(connected, host):
    """Both spellings get the union: libraries differ in which one wins."""
    found = connected(f"http://{host}", NO_PROXY="a.example, localhost", no_proxy="b.example")

    expected = "a.example,localhost,b.example,127.0.0.1,::1"
    assert found == (expected, expected, "0")


def test_connecting_elsewhere_leaves_proxies_alone(connected):
    """A remote service may need the proxy; a user's choice of telemetry stands."""
    found = connected("http://localhost.example.org", TINKER_TELEMETRY="1")

    assert found == (None, None, "1")


def test_the_sdks_loop_is_ended_before_the_interpreter():
    """The loop in its thread stops within END_SECONDS, so that no native code outlives Python."""
    loop = asyncio.new_event_loop()
    running = threading.Event()
    loop.call_soon(running.set)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert running.wait(60)

    end_background_loop(loop)

    thread.join(timeout=60)
    assert not thread.is_alive()
    loop.close()


def test_the_sdk_sends_nothing_to_a_loop_that_has_ended():
    """Its holders' finalisers, which may run after the loop's, find nothing to do.

    A client has one for its session, and one for requests without a session once it made any.
    """
    sent = []

    class Holder:
        def __init__(self):
            self.loop = asyncio.new_event_loop()

        def get_loop(self):
            return self.loop

        def close(self):
            sent.append("cleanup")

        def __del__(self):
            self.close()

    for rest in (None, Holder()):
        client = SimpleNamespace(holder=Holder(), _rest_holder=rest)
        with warnings.catch_warnings():
            leave(client)
        for holder in filter(None, (client.holder, rest)):
            holder.loop.close()
    del client, rest, holder
    gc.collect()

    assert sent == []
