"""The endpoints, as SDK 0.25 calls them. Nothing here computes."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import orjson
from starlette.responses import Response

from harness.engine import fields
from harness.engine.archive import LINK_SECONDS, Links, peft_archive
from harness.engine.bodies import json_body, plain_body
from harness.engine.checkpoints import listed
from harness.engine.errors import RequestError
from harness.engine.futures import Answer, Future, failure
from harness.engine.http import JSON, Handler, Request
from harness.engine.service import Service
from harness.engine.state import CheckpointPath

POLL_SECONDS = 20.0
API = "/api/v1/"
ARCHIVES = API + "archives/"

CLIENT_CONFIG = {
    "parallel_fwdbwd_chunks": False,
    "proto_compress_fwdbwd": False,
    "pjwt_auth_enabled": False,
}

T = TypeVar("T")


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
        def handler(request: Request) -> Response:
            return _pending(start(json_body(request)))

        return handler

    def _constant(self, content: object) -> Handler:
        body = orjson.dumps(content)

        def handler(_: Request) -> Response:
            return Response(body, media_type=JSON)

        return handler

    def _capabilities(self, _: Request) -> Response:
        base, arrangement = self._service.base, self._service.arrangement
        return _ok(
            {
                "supported_models": [
                    {"model_name": name, "max_context_length": base.config.max_positions}
                    for name in base.names
                ],
                # beyond the protocol: the SDK reads over it
                "determinism": {"bit_exact": arrangement.exact, "noise_nats": arrangement.noise},
            }
        )

    def _create_session(self, request: Request) -> Response:
        json_body(request)
        return _ok(
            {"type": "create_session", "session_id": self._service.registry.create_session()}
        )

    def _heartbeat(self, request: Request) -> Response:
        self._service.registry.heartbeat(json_body(request))
        return _ok({"type": "session_heartbeat"})

    def _forward_backward(self, request: Request) -> Response:
        return _pending(self._service.training.forward_backward(plain_body(request)))

    def _retrieve(self, request: Request) -> Response | Awaitable[Response]:
        request_id = fields.text(json_body(request), "request_id")
        future = self._service.futures.find(request_id)
        if future is None:
            return _answered(
                failure(
                    f"request {request_id[:80]!r} is unknown here: the engine restarted, or its "
                    "result was kept longer than results are kept",
                    "unknown",
                )
            )
        return self._poll(future) if future.answer is None else _answered(future.answer)

    async def _poll(self, future: Future) -> Response:
        answer = await self._service.futures.wait(future, POLL_SECONDS)
        if answer is None:
            return Response(orjson.dumps({"queue_state": "active"}), 408, media_type=JSON)
        return _answered(answer)

    def _create_sampling_session(self, request: Request) -> Response:
        sampler_id = self._service.sampling.create_session(json_body(request))
        return _ok({"type": "create_sampling_session", "sampling_session_id": sampler_id})

    def _get_info(self, request: Request) -> Response:
        return _ok(self._service.info(json_body(request)))

    def _weights_info(self, request: Request) -> Response:
        return _ok(self._service.weights_info(json_body(request)))

    def _sampler(self, request: Request) -> Response:
        return _ok(self._service.sampler_info(request.params["sampler_id"]))

    def _sessions(self, request: Request) -> Response:
        names, _ = _page(request, sorted(self._service.registry.sessions))
        return _ok({"sessions": names})

    def _session(self, request: Request) -> Response:
        session = self._service.registry.sessions.get(request.params["session_id"])
        if session is None:
            raise RequestError("session is unknown here")
        return _ok({"training_run_ids": session.models, "sampler_ids": session.samplers})

    def _training_runs(self, request: Request) -> Response:
        names, cursor = _page(request, self._service.state.run_ids()[::-1])
        runs = [self._service.training_run(name) for name in names]
        return _ok({"training_runs": runs, "cursor": cursor})

    def _training_run(self, request: Request) -> Response:
        return _ok(self._service.training_run(request.params["run"]))

    def _checkpoints(self, request: Request) -> Response:
        self._service.state.read_run(request.params["run"])
        stored = self._service.state.checkpoints(request.params["run"])
        return _ok({"checkpoints": [listed(c) for c in stored]})

    def _all_checkpoints(self, request: Request) -> Response:
        state = self._service.state
        stored = [c for run in state.run_ids() for c in state.checkpoints(run)]
        page, cursor = _page(request, sorted(stored, key=lambda c: -c.time))
        return _ok({"checkpoints": [listed(c) for c in page], "cursor": cursor})

    def _delete(self, request: Request) -> Response:
        self._service.state.delete(_path(request))
        return Response(status_code=204)

    def _link(self, request: Request) -> Response:
        path = _path(request)
        if path.kind != "sampler_weights" or not self._service.state.exists(path):
            raise RequestError(f"{path} can't be downloaded; only stored sampler_weights can")
        link = f"http://{request.headers.get('host', '')}{ARCHIVES}{self._links.make(path)}"
        expires = email.utils.formatdate(time.time() + LINK_SECONDS, usegmt=True)
        return Response(status_code=302, headers={"location": link, "expires": expires})

    def _archive(self, request: Request) -> Response:
        path = self._links.find(request.params["link"])
        if path is None:
            return refusal(404, "this link does not exist or has expired; ask for another")
        tensors, _ = self._service.state.read(path)
        return Response(
            peft_archive(tensors, self._service.base.folder), media_type="application/x-tar"
        )

    def _set_ttl(self, request: Request) -> Response:
        ttl = fields.optional_integer(json_body(request), "ttl_seconds", 1, 1 << 40)
        self._service.state.set_ttl(_path(request), ttl)
        return _ok({})


def _path(request: Request) -> CheckpointPath:
    at = request.params
    return CheckpointPath.of(at["run"], at["kind"], at["name"])


def _page(request: Request, items: list[T]) -> tuple[list[T], dict[str, int]]:
    """The part of a list that `limit` and `offset` ask for."""
    query = request.query
    try:
        limit, offset = int(query.get("limit", "100")), int(query.get("offset", "0"))
    except ValueError:
        raise RequestError("limit and offset must be whole numbers") from None
    if limit < 0 or offset < 0:
        raise RequestError("limit and offset must not be negative")
    cursor = {"offset": offset, "limit": limit, "total_count": len(items)}
    return items[offset : offset + limit], cursor


def refusal(status: int, message: str) -> Response:
    """A refusal in the shape that the SDK shows."""
    body = {"error": message, "detail": message, "category": "user"}
    return Response(orjson.dumps(body), status, media_type=JSON)


def _ok(content: object) -> Response:
    return Response(orjson.dumps(content), media_type=JSON)


def _pending(future: Future) -> Response:
    return _ok({"request_id": future.request_id})


def _answered(answer: Answer) -> Response:
    return Response(answer.body, media_type=answer.media_type)
