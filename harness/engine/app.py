"""The application: finds the endpoint of a request, asks for the key, turns errors into answers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable
from dataclasses import replace

from harness.engine.errors import RequestError
from harness.engine.http import Malformed, Request, Response, Router
from harness.engine.routes import API, ARCHIVES, Routes, refusal
from harness.engine.service import Service

log = logging.getLogger(__name__)


class App:
    """Answers requests; with `api_key`, they must carry it as X-API-Key.

    A refused request gets one line with status 400: 5xx and 409 would make the SDK retry.
    """

    def __init__(self, service: Service, api_key: str | None = None) -> None:
        self._router = Router(
            (m, API + path, handler) for m, path, handler in Routes(service).table()
        )
        self._key = None if api_key is None else api_key.encode()

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        """The answer, or what to await for it."""
        if self._key is not None and not request.path.startswith(ARCHIVES):
            sent = request.headers.get("x-api-key", "").encode("latin-1")
            if not hmac.compare_digest(sent, self._key):
                return refusal(401, "X-API-Key is missing or wrong")
        found = self._router.find(request.method, request.path)
        if found is None:
            return refusal(404, f"{request.method} {request.path[:200]} is unknown here")
        handler, params = found
        try:
            answer = handler(replace(request, params=params) if params else request)
        except Exception as error:
            return _refused(request, error)
        return answer if isinstance(answer, Response) else _awaited(request, answer)


async def _awaited(request: Request, answer: Awaitable[Response]) -> Response:
    try:
        return await answer
    except Exception as error:
        return _refused(request, error)


def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        log.info("%s refused: %s", request.path, error)
        return refusal(400, str(error))
    if isinstance(error, Malformed):
        return refusal(error.status, str(error))
    log.error("%s failed", request.path, exc_info=error)
    return refusal(400, f"{type(error).__name__}: {error}")
