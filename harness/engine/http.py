"""HTTP/1.1 as far as this server needs it, on asyncio alone.

An answer is one write, and a handler that has nothing to wait for runs without a task. A request so
holds the interpreter lock for a fraction of the time that a general framework takes, and it is the
worker threads' lock as well.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

MAX_HEAD = 64 << 10
MAX_BODY = 256 << 20
IDLE_SECONDS = 120.0  # longer than the SDK's own pool keeps a connection: the client closes first
LINGER_SECONDS = 2.0
END_OF_HEAD = b"\r\n\r\n"
JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """A whole request. Header names are in lower case; `params` are the path's named parts."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    params: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """A whole answer."""

    body: bytes = b""
    status: int = 200
    media_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Response | Awaitable[Response]]


class Malformed(Exception):
    """What came in is no request that can be answered; the connection ends."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Router:
    """Finds the handler of a request: `{name}` in a route stands for one part of a path."""

    def __init__(self, routes: Iterable[tuple[str, str, Handler]]) -> None:
        self._fixed: dict[tuple[str, str], Handler] = {}
        self._open: list[tuple[str, list[str], Handler]] = []
        for method, path, handler in routes:
            if "{" in path:
                self._open.append((method, path.split("/"), handler))
            else:
                self._fixed[method, path] = handler

    def find(self, method: str, path: str) -> tuple[Handler, dict[str, str]] | None:
        """The handler and the named parts of the path, percent signs decoded."""
        fixed = self._fixed.get((method, path))
        if fixed is not None:
            return fixed, {}
        parts = path.split("/")
        for allowed, wanted, handler in self._open:
            if allowed == method and len(wanted) == len(parts):
                pairs = list(zip(wanted, parts, strict=True))
                if all(w == p for w, p in pairs if not w.startswith("{")):
                    return handler, {w[1:-1]: unquote(p) for w, p in pairs if w.startswith("{")}
        return None


class Server:
    """Answers every connection of a listening socket. `refuse` makes the body of a refusal."""

    def __init__(self, handle: Handler, refuse: Callable[[str], bytes]) -> None:
        self.handle, self.refuse = handle, refuse
        self.connections: set[_Connection] = set()

    async def start(self, listener: socket.socket) -> None:
        """Serve until `stop`."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            lambda: _Connection(self), sock=listener, backlog=4096
        )
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Accept nothing more, and end all connections."""
        self._sweeping.cancel()
        self._listening.close()
        for connection in list(self.connections):
            connection.end()
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SECONDS / 8)
            limit = time.monotonic() - IDLE_SECONDS
            for connection in [c for c in self.connections if c.idle_since < limit]:
                connection.end()


@dataclass(frozen=True)
class _Head:
    method: str
    target: str
    headers: dict[str, str]
    length: int | None  # None: the body comes in chunks
    lasting: bool


class _Connection(asyncio.Protocol):
    """One client's connection: its requests are answered one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._unread = bytearray()
        self._head: _Head | None = None
        self._chunks = bytearray()
        self._task: asyncio.Future[Response] | None = None
        self._ending = False
        self._last_active = time.monotonic()

    @property
    def idle_since(self) -> float:
        """When it last did anything; never, as it were, while it waits for an answer."""
        return self._last_active if self._task is None else float("inf")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Part of asyncio.Protocol; nobody is left to be answered."""
        self._ending = True
        self._server.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        self._last_active = time.monotonic()
        if self._ending:
            return
        self._unread += data
        self._go_on()
        if self._task is not None and len(self._unread) > MAX_HEAD:
            self._transport.pause_reading()

    def end(self) -> None:
        """Close when what has been written is out."""
        self._ending = True
        self._transport.close()

    def _go_on(self) -> None:
        """Answer what has arrived as a whole, up to an answer that is not there yet."""
        while self._task is None and not self._ending:
            try:
                request = self._next()
            except Malformed as error:
                self._give_up(error)
                return
            if request is None:
                return
            answer = self._server.handle(request)
            if isinstance(answer, Response):
                self._send(answer)
            else:
                self._task = asyncio.ensure_future(answer)
                self._task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Future[Response]) -> None:
        self._task = None
        self._last_active = time.monotonic()
        if not task.cancelled() and not self._ending:
            self._send(task.result())
            self._transport.resume_reading()
            self._go_on()

    def _send(self, answer: Response) -> None:
        assert self._head is not None
        lasting, self._head = self._head.lasting, None
        self._transport.write(_encoded(answer, lasting))
        if not lasting:
            self.end()

    def _give_up(self, error: Malformed) -> None:
        """Say why, and stay a little: closing at once would reset what the client still sends."""
        self._ending = True
        self._unread.clear()
        body = self._server.refuse(str(error))
        self._transport.write(_encoded(Response(body, error.status), lasting=False))
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)

    def _next(self) -> Request | None:
        """The next request, if all of it is there. Raises Malformed."""
        if self._head is None:
            end = self._unread.find(END_OF_HEAD)
            if end > MAX_HEAD or (end < 0 and len(self._unread) > MAX_HEAD):
                raise Malformed(431, f"the head of the request exceeds {MAX_HEAD} bytes")
            if end < 0:
                return None
            self._head = _parsed(bytes(self._unread[:end]))
            del self._unread[: end + len(END_OF_HEAD)]
            if self._head.headers.get("expect", "").lower() == "100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = self._head
        body = self._chunked() if head.length is None else self._of_length(head.length)
        if body is None:
            return None
        path, _, query = head.target.partition("?")
        return Request(head.method, path, dict(parse_qsl(query)), head.headers, body)

    def _of_length(self, length: int) -> bytes | None:
        if len(self._unread) < length:
            return None
        body = bytes(self._unread[:length])
        del self._unread[:length]
        return body

    def _chunked(self) -> bytes | None:
        """The body once its last chunk is there; trailers are skipped. Raises Malformed."""
        while (end := self._unread.find(b"\r\n")) >= 0:
            size = _chunk_size(bytes(self._unread[:end]))
            if len(self._chunks) + size > MAX_BODY:
                raise _too_large()
            if size == 0:
                trailers = self._unread.find(END_OF_HEAD, end)
                if trailers < 0:
                    break
                del self._unread[: trailers + len(END_OF_HEAD)]
                body, self._chunks = bytes(self._chunks), bytearray()
                return body
            stop = end + 2 + size
            if len(self._unread) < stop + 2:
                return None
            if self._unread[stop : stop + 2] != b"\r\n":
                raise Malformed(400, "a chunk of the body is longer than it says")
            self._chunks += self._unread[end + 2 : stop]
            del self._unread[: stop + 2]
        if len(self._unread) > MAX_HEAD:
            raise Malformed(400, "the body's chunks can't be told apart")
        return None


def _parsed(head: bytes) -> _Head:
    """The head of a request. Raises Malformed."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[1].startswith("/"):
        raise Malformed(400, f"{first[:80]!r} is not the first line of an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Malformed(400, f"{line[:80]!r} is not a header")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and name in ("content-length", "transfer-encoding", "host"):
            raise Malformed(400, f"the header {name} occurs twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    wish = headers.get("connection", "").lower()
    lasting = wish == "keep-alive" or (words[2] == "HTTP/1.1" and wish != "close")
    return _Head(words[0], words[1], headers, _length(headers), lasting)


def _length(headers: dict[str, str]) -> int | None:
    """How long the body is; None if that is told chunk by chunk. Raises Malformed."""
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise Malformed(400, f"Transfer-Encoding {coding[:40]!r}; only chunked is served")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise Malformed(400, f"Content-Length {length[:40]!r} is not a number of bytes")
    if int(length) > MAX_BODY:
        raise _too_large()
    return int(length)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        return int(digits, 16) if digits.isalnum() and len(digits) < 16 else _no_chunk(line)
    except ValueError:
        return _no_chunk(line)


def _no_chunk(line: bytes) -> int:
    raise Malformed(400, f"{line[:40]!r} is not the size of a chunk")


def _too_large() -> Malformed:
    return Malformed(413, f"the body exceeds {MAX_BODY} bytes; send less at once")


def _encoded(answer: Response, lasting: bool) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    if answer.status != HTTPStatus.NO_CONTENT:
        lines += [f"content-type: {answer.media_type}", f"content-length: {len(answer.body)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if not lasting:
        lines.append("connection: close")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + answer.body
