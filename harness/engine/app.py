"""The HTTP routes, as SDK 0.25 calls them. Nothing here computes."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import orjson
import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from harness.engine import fields
from harness.engine.archive import LINK_SECONDS, Links, peft_archive
from harness.engine.checkpoints import listed
from harness.engine.errors import RequestError
from harness.engine.futures import JSON, Answer, Future, failure
from harness.engine.service import Service
from harness.engine.state import CheckpointPath

log = logging.getLogger(__name__)

MAX_BODY = 256 << 20
POLL_SECONDS = 20.0
SILENT_SECONDS = 900.0
ARCHIVES = "/api/v1/archives/"

CLIENT_CONFIG = {
    "parallel_fwdbwd_chunks": False,
    "proto_compress_fwdbwd": False,
    "pjwt_auth_enabled": False,
}

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def make_app(service: Service, api_key: str | None = None) -> ASGIApp:
    """The application; with `api_key`, requests must carry it as X-API-Key."""
    routes = Routes(service)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(_housekeeping(service))
        yield
        task.cancel()

    app = Starlette(
        routes=[
            Route(f"/api/v1/{path}", _guarded(handler), methods=[method])
            for method, path, handler in routes.table()
        ],
        lifespan=lifespan,
    )
    return app if api_key is None else _KeyCheck(app, api_key)


async def _housekeeping(service: Service) -> None:
    while True:
        await asyncio.sleep(30)
        service.registry.forget_silent_sessions(SILENT_SECONDS)


class Routes:
    """One method per endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._links = Links()

    def table(self) -> list[tuple[str, str, Handler]]:
        """Method, path below /api/v1, handler."""
        t = self._service.training
        later = self._later
        return [
            ("GET", "healthz", self._constant({"status": "ok"})),
            ("GET", "get_server_capabilities", self._capabilities),
            ("POST", "client/config", self._constant(CLIENT_CONFIG)),
            ("POST", "client/dynamic_config", self._constant({"refresh_interval_sec": 300})),
            ("POST", "telemetry", self._constant({"status": "accepted"})),
            ("POST", "create_session", self._create_session),
            ("POST", "session_heartbeat", self._heartbeat),
            ("POST", "create_model", later(t.create_model)),
            ("POST", "forward_backward", self._forward_backward),
            ("POST", "optim_step", later(t.optim_step)),
            ("POST", "save_weights", later(t.save_weights)),
            ("POST", "save_weights_for_sampler", later(t.save_weights_for_sampler)),
            ("POST", "load_weights", later(t.load_weights)),
            ("POST", "unload_model", later(t.unload_model)),
            ("POST", "asample", later(self._service.sampling.sample)),
            ("POST", "retrieve_future", self._retrieve),
            ("POST", "create_sampling_session", self._create_sampling_session),
            ("POST", "get_info", self._get_info),
            ("POST", "weights_info", self._weights_info),
            ("GET", "samplers/{sampler_id}", self._sampler),
            ("GET", "sessions", self._sessions),
            ("GET", "sessions/{session_id}", self._session),
            ("GET", "training_runs", self._training_runs),
            ("GET", "training_runs/{run}", self._training_run),
            ("GET", "training_runs/{run}/checkpoints", self._checkpoints),
            ("GET", "checkpoints", self._all_checkpoints),
            ("DELETE", "training_runs/{run}/checkpoints/{kind}/{name}", self._delete),
            ("PUT", "training_runs/{run}/checkpoints/{kind}/{name}/ttl", self._set_ttl),
            ("GET", "training_runs/{run}/checkpoints/{kind}/{name}/archive", self._link),
            ("GET", "archives/{link}", self._archive),
        ]

    def _later(self, start: Callable[[fields.Json], Future]) -> Handler:
        async def handler(request: Request) -> Response:
            return _pending(start(await _json(request)))

        return handler

    def _constant(self, content: object) -> Handler:
        body = orjson.dumps(content)

        async def handler(request: Request) -> Response:
            await request.body()
            return Response(body, media_type=JSON)

        return handler

    async def _capabilities(self, _: Request) -> Response:
        base = self._service.base
        return _ok(
            {
                "supported_models": [
                    {"model_name": name, "max_context_length": base.config.max_positions}
                    for name in base.names
                ]
            }
        )

    async def _create_session(self, request: Request) -> Response:
        await _json(request)
        return _ok(
            {"type": "create_session", "session_id": self._service.registry.create_session()}
        )

    async def _heartbeat(self, request: Request) -> Response:
        self._service.registry.heartbeat(await _json(request))
        return _ok({"type": "session_heartbeat"})

    async def _forward_backward(self, request: Request) -> Response:
        return _pending(self._service.training.forward_backward(await _body(request)))

    async def _retrieve(self, request: Request) -> Response:
        request_id = fields.text(await _json(request), "request_id")
        try:
            answer = await self._service.futures.wait(request_id, POLL_SECONDS)
        except KeyError:
            answer = failure(
                f"request {request_id[:80]!r} is unknown here: the engine restarted, or its result "
                "was kept longer than results are kept",
                "unknown",
            )
        if answer is None:
            return Response(
                orjson.dumps({"queue_state": "active"}), status_code=408, media_type=JSON
            )
        return _answered(answer)

    async def _create_sampling_session(self, request: Request) -> Response:
        sampler_id = self._service.sampling.create_session(await _json(request))
        return _ok({"type": "create_sampling_session", "sampling_session_id": sampler_id})

    async def _get_info(self, request: Request) -> Response:
        return _ok(self._service.info(await _json(request)))

    async def _weights_info(self, request: Request) -> Response:
        return _ok(self._service.weights_info(await _json(request)))

    async def _sampler(self, request: Request) -> Response:
        return _ok(self._service.sampler_info(request.path_params["sampler_id"]))

    async def _sessions(self, request: Request) -> Response:
        names, _ = _page(request, sorted(self._service.registry.sessions))
        return _ok({"sessions": names})

    async def _session(self, request: Request) -> Response:
        session = self._service.registry.sessions.get(request.path_params["session_id"])
        if session is None:
            raise RequestError("session is unknown here")
        return _ok({"training_run_ids": session.models, "sampler_ids": session.samplers})

    async def _training_runs(self, request: Request) -> Response:
        names, cursor = _page(request, self._service.state.run_ids()[::-1])
        runs = [self._service.training_run(name) for name in names]
        return _ok({"training_runs": runs, "cursor": cursor})

    async def _training_run(self, request: Request) -> Response:
        return _ok(self._service.training_run(request.path_params["run"]))

    async def _checkpoints(self, request: Request) -> Response:
        self._service.state.read_run(request.path_params["run"])
        stored = self._service.state.checkpoints(request.path_params["run"])
        return _ok({"checkpoints": [listed(c) for c in stored]})

    async def _all_checkpoints(self, request: Request) -> Response:
        state = self._service.state
        stored = [c for run in state.run_ids() for c in state.checkpoints(run)]
        page, cursor = _page(request, sorted(stored, key=lambda c: -c.time))
        return _ok({"checkpoints": [listed(c) for c in page], "cursor": cursor})

    async def _delete(self, request: Request) -> Response:
        self._service.state.delete(_path(request))
        return Response(status_code=204)

    async def _link(self, request: Request) -> Response:
        path = _path(request)
        if path.kind != "sampler_weights" or not self._service.state.exists(path):
            raise RequestError(f"{path} can't be downloaded; only stored sampler_weights can")
        link = request.url.replace(path=f"{ARCHIVES}{self._links.make(path)}", query="")
        expires = email.utils.formatdate(time.time() + LINK_SECONDS, usegmt=True)
        return Response(status_code=302, headers={"Location": str(link), "Expires": expires})

    async def _archive(self, request: Request) -> Response:
        path = self._links.find(request.path_params["link"])
        if path is None:
            return _refusal(404, "this link does not exist or has expired; ask for another")
        tensors, _ = self._service.state.read(path)
        return Response(
            peft_archive(tensors, self._service.base.folder), media_type="application/x-tar"
        )

    async def _set_ttl(self, request: Request) -> Response:
        ttl = fields.optional_integer(await _json(request), "ttl_seconds", 1, 1 << 40)
        self._service.state.set_ttl(_path(request), ttl)
        return _ok({})


def _guarded(handler: Handler) -> Handler:
    """A refused request gets one line with status 400; 5xx and 409 would make the SDK retry."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            log.info("%s refused: %s", request.url.path, error)
            return _refusal(400, str(error))
        except _TooLarge as error:
            return _refusal(413, str(error))
        except Exception as error:
            log.exception("%s failed", request.url.path)
            return _refusal(400, f"{type(error).__name__}: {error}")

    return guarded


class _TooLarge(Exception):
    """A body above MAX_BODY."""


class _KeyCheck:
    """Answers 401 unless X-API-Key is the configured key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app, self._key = app, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["path"].startswith(ARCHIVES):  # the random name in the link is its key
                await self._app(scope, receive, send)
                return
            sent = dict(scope["headers"]).get(b"x-api-key", b"")
            if not hmac.compare_digest(sent, self._key):
                await _refusal(401, "X-API-Key is missing or wrong")(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _body(request: Request) -> bytes:
    """The body, decompressed, at most MAX_BODY bytes either way."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise _TooLarge(f"the body exceeds {MAX_BODY} bytes; send fewer datums at once")
        parts.append(part)
    raw = b"".join(parts)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "zstd":
        try:
            with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
                raw = reader.read(MAX_BODY + 1)
        except zstandard.ZstdError as error:
            raise RequestError(f"the body is not valid zstd ({error})") from None
        if len(raw) > MAX_BODY:
            raise _TooLarge(f"the body exceeds {MAX_BODY} bytes when decompressed")
    elif encoding != "identity":
        raise RequestError(f"Content-Encoding {encoding!r}; zstd and identity are accepted")
    return raw


async def _json(request: Request) -> fields.Json:
    raw = await _body(request)
    try:
        body = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON ({error})") from None
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    return body


def _path(request: Request) -> CheckpointPath:
    at = request.path_params
    return CheckpointPath.of(at["run"], at["kind"], at["name"])


def _page(request: Request, items: list[T]) -> tuple[list[T], dict[str, int]]:
    """The part of a list that `limit` and `offset` ask for."""
    query = request.query_params
    try:
        limit, offset = int(query.get("limit", "100")), int(query.get("offset", "0"))
    except ValueError:
        raise RequestError("limit and offset must be whole numbers") from None
    if limit < 0 or offset < 0:
        raise RequestError("limit and offset must not be negative")
    cursor = {"offset": offset, "limit": limit, "total_count": len(items)}
    return items[offset : offset + limit], cursor


def _ok(content: object) -> Response:
    return Response(orjson.dumps(content), media_type=JSON)


def _pending(future: Future) -> Response:
    return _ok({"request_id": future.request_id})


def _answered(answer: Answer) -> Response:
    return Response(answer.body, media_type=answer.media_type)


def _refusal(status: int, message: str) -> Response:
    return Response(
        orjson.dumps({"error": message, "detail": message, "category": "user"}),
        status_code=status,
        media_type=JSON,
    )
