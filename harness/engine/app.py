"""The application: endpoints behind the key, and errors as answers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request as Incoming
from starlette.responses import Response
from starlette.routing import Route

from harness.engine.errors import RequestError
from harness.engine.http import Handler, Request, TooLarge, whole
from harness.engine.routes import API, ARCHIVES, Routes, refusal
from harness.engine.service import Service

log = logging.getLogger(__name__)

ALL = ("GET", "POST", "PUT", "PATCH", "DELETE")
Endpoint = Callable[[Incoming], Awaitable[Response]]


def make_app(service: Service, api_key: str | None = None) -> Starlette:
    """The application; with `api_key`, requests must carry it as X-API-Key.

    A refused request gets one line with status 400: 5xx and 409 would make the SDK retry.
    """
    key = None if api_key is None else api_key.encode()
    routes = [
        Route(API + path, _endpoint(handler, key), methods=[method])
        for method, path, handler in Routes(service).table()
    ]
    return Starlette(routes=[*routes, Route("/{path:path}", _endpoint(_unknown, key), methods=ALL)])


def _endpoint(handler: Handler, key: bytes | None) -> Endpoint:
    async def endpoint(incoming: Incoming) -> Response:
        path = incoming.url.path
        # the random name in an archive's link is its key
        if key is not None and not path.startswith(ARCHIVES):
            sent = incoming.headers.get("x-api-key", "").encode("latin-1")
            if not hmac.compare_digest(sent, key):
                return refusal(401, "X-API-Key is missing or wrong")
        try:
            answer = handler(await whole(incoming))
            return answer if isinstance(answer, Response) else await answer
        except RequestError as error:
            log.info("%s refused: %s", path, error)
            return refusal(400, str(error))
        except TooLarge as error:
            return refusal(413, str(error))
        except Exception as error:
            log.exception("%s failed", path)
            return refusal(400, f"{type(error).__name__}: {error}")

    return endpoint


def _unknown(request: Request) -> Response:
    return refusal(404, f"{request.path[:200]} is unknown here, or not by this method")
