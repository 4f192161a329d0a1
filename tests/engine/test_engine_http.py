"""The HTTP server: framing, order, and what it refuses."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from harness.engine import http
from harness.engine.http import Handler, Request, Response, Router, Server

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _echo(request: Request) -> Response:
    return Response(request.method.encode() + b" " + request.path.encode() + b" " + request.body)


def _converse(talk: Talk, handle: Handler = _echo) -> None:
    """One connection to a server of its own."""

    async def main() -> None:
        server = Server(handle, str.encode)
        listener = socket.create_server(("127.0.0.1", 0))
        await server.start(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        try:
            await asyncio.wait_for(talk(reader, writer), 10)
        finally:
            writer.close()
            await server.stop()

    asyncio.run(main())


async def _answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The first line of an answer, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-l")),
        0,
    )
    return head.split(b"\r\n")[0], await reader.readexactly(length)


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nhe\r\n3;note=1\r\nllo\r\n0\r\nTrailer: t\r\n\r\n",
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_body_arrives_however_it_is_cut(raw: bytes, step: int) -> None:
    """Of a stated length or in chunks, byte by byte or at once: the handler sees the same body."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            for start in range(0, len(raw), step):
                writer.write(raw[start : start + step])
                await asyncio.sleep(0)
            assert await _answer(reader) == (b"HTTP/1.1 200 OK", b"POST /x hello")

    _converse(talk)


def test_requests_of_one_connection_are_answered_in_order() -> None:
    """A request that must wait holds back the one sent behind it, and neither is lost."""

    def handle(request: Request) -> Response | Awaitable[Response]:
        async def later() -> Response:
            await asyncio.sleep(0.05)
            return Response(b"slow")

        return later() if request.path == "/slow" else Response(b"fast")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"GET /slow HTTP/1.1\r\n\r\nGET /fast HTTP/1.1\r\n\r\nGET /slow HTTP/1.1\r\n\r\n"
        )
        assert [(await _answer(reader))[1] for _ in range(3)] == [b"slow", b"fast", b"slow"]

    _converse(talk, handle)


def test_a_client_that_leaves_is_not_waited_for() -> None:
    """The wait for its answer is cancelled when the connection goes."""
    left = asyncio.Event()

    async def wait() -> Response:
        try:
            await asyncio.sleep(60)
        finally:
            left.set()
        return Response()

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.wait_for(left.wait(), 5)

    _converse(talk, lambda _: wait())


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"]
)
def test_a_connection_ends_when_its_client_wants_that(head: bytes) -> None:
    """HTTP/1.0, or Connection: close: one answer, then the end."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        assert (await _answer(reader))[1] == b"GET / "
        assert await reader.read() == b""

    _converse(talk)


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    """Expect: 100-continue is answered before the body is sent."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"PUT / HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await _answer(reader))[0] == b"HTTP/1.1 100 Continue"
        writer.write(b"ok")
        assert (await _answer(reader))[1] == b"PUT / ok"

    _converse(talk)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nSpace : b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * http.MAX_HEAD, 431),
    ],
)
def test_what_is_no_request_is_refused_and_ends_the_connection(
    raw: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer that says why, and nothing behind it is taken for a request."""
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.02)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        line, body = await _answer(reader)
        assert int(line.split()[1]) == status
        assert body
        assert await reader.read() == b""

    _converse(talk)


def test_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that does nothing is closed; one that waits for its answer is not."""
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.1)

    async def slow() -> Response:
        await asyncio.sleep(0.3)
        return Response(b"at last")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await _answer(reader))[1] == b"at last"
        assert await reader.read() == b""

    _converse(talk, lambda _: slow())


def test_routes_have_fixed_and_named_parts() -> None:
    """A named part is decoded and can't hold a slash of the path; method and length must fit."""
    router = Router([("GET", "/a/b", _echo), ("GET", "/a/{x}/c/{y}", _echo)])
    assert router.find("GET", "/a/b") == (_echo, {})
    assert router.find("GET", "/a/s1%3Atrain/c/..%2Fd") == (_echo, {"x": "s1:train", "y": "../d"})
    for method, path in (("POST", "/a/b"), ("GET", "/a/b/"), ("GET", "/a/x/d/y"), ("GET", "/")):
        assert router.find(method, path) is None
