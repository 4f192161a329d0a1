import asyncio
import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from harness.errors import ServiceDied, ServiceUnreachable
from harness.training import embedded_service
from harness.training.embedded_service import HearingLoop, answers, start_or_join, watched
from harness.training.service import ServiceAddress


@pytest.fixture
def port():
    """A socket that listens on loopback, as an engine does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address_of(listening, kind="embedded"):
    """The address of a listening socket."""
    return ServiceAddress(f"http://127.0.0.1:{listening.getsockname()[1]}", kind, "tml-x")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """`engine(script)` puts a shell script in the place of the engine; it returns a starter."""

    def scripted(script):
        program = tmp_path / "engine.sh"
        program.write_text(f"#!/bin/sh\necho started >> '{tmp_path}/starts'\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return lambda: start_or_join(tmp_path / "engine", tmp_path, "a/model", os.getpid())

    return scripted


@pytest.fixture
def healthy():
    """The URL of a server that answers 200 to everything."""

    class Ok(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Ok) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_engine_that_ends_before_it_serves_is_told_with_its_last_word(engine, tmp_path):
    """Exit code, the last line of its log and the log's path; nothing else is left behind."""
    start = engine("echo loading >&2; echo no weights in model >&2; exit 3")

    with pytest.raises(ServiceUnreachable) as caught:
        start()

    log = tmp_path / "engine" / "engine.log"
    assert f"ended with exit code 3 before it served: no weights in model (its log: {log})" in str(
        caught.value
    )
    assert not (tmp_path / "engine" / "address.json").exists()
    assert not list((tmp_path / "engine").glob("stdout-*"))


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": 1}', b'{"url": "http://127.0.0.1:1"}'])
def test_an_address_of_no_living_engine_is_not_believed(engine, tmp_path, content):
    """A torn address file, or one of an engine that died, leads to a new start."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "address.json").write_bytes(content)

    with pytest.raises(ServiceUnreachable, match="ended with exit code 3"):
        engine("exit 3")()
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_living_engine_is_joined(engine, tmp_path, healthy):
    """The second to ask gets the address of the first's engine, and starts none."""
    start = engine(f"echo {healthy}; exec sleep 2")

    first, second = start(), start()

    assert first == second
    assert (first.base_url, first.kind) == (healthy, "embedded")
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_port_answers_while_somebody_listens(port):
    """Listening is all that is asked; a closed port does not answer."""
    address = address_of(port)

    assert answers(address.base_url)
    port.close()
    assert not answers(address.base_url)


def test_watched_work_that_ends_gives_its_result(port, tmp_path):
    """The result is passed through."""

    async def work():
        await asyncio.sleep(0.01)
        return 42

    assert asyncio.run(watched(work(), address_of(port), tmp_path)) == 42


def test_watched_work_that_fails_raises_its_own_exception(port, tmp_path):
    """An exception of the work is not dressed up."""

    async def work():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(watched(work(), address_of(port), tmp_path))


def test_work_is_stopped_when_the_embedded_engine_is_gone(port, tmp_path):
    """The SDK would retry a dead port for minutes: a few seconds are enough to know, and say."""
    ended = []

    async def work():
        port.close()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(ServiceDied, match=r"stopped; run again, .*engine\.log"):
        asyncio.run(watched(work(), address_of(port), tmp_path))

    assert ended == [True]


def test_a_remote_service_is_left_to_the_sdk(port, tmp_path):
    """Its retries are meant for it: work goes on while the port is closed."""

    async def work():
        port.close()
        await asyncio.sleep(1.2)
        return "done"

    assert asyncio.run(watched(work(), address_of(port, "remote"), tmp_path)) == "done"


@pytest.mark.parametrize("silent", [True, False])
def test_a_remote_service_is_given_up_once_it_answers_nothing(port, tmp_path, monkeypatch, silent):
    """What counts is an answer to any request, which comes from the SDK's thread, not the time."""
    monkeypatch.setattr(embedded_service, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(embedded_service, "SILENT_SECONDS", 0.5)
    over = threading.Event()

    async def work():
        loop = asyncio.get_running_loop()

        def answer():
            while not over.wait(0.02):
                loop.call_soon_threadsafe(lambda: None)

        thread = threading.Thread(target=answer)
        if not silent:
            thread.start()
        try:
            await asyncio.sleep(60 if silent else 1.0)
        finally:
            over.set()
            if not silent:
                thread.join()
        return "done"

    with asyncio.Runner(loop_factory=HearingLoop) as runner:
        working = watched(work(), address_of(port, "remote"), tmp_path)
        if silent:
            with pytest.raises(ServiceUnreachable, match="no request was answered for"):
                runner.run(working)
        else:
            assert runner.run(working) == "done"
