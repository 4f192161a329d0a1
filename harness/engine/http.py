"""What a handler sees of HTTP: whole requests and whole answers. uvicorn does the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request as Incoming
from starlette.responses import Response

MAX_BODY = 256 << 20
JSON = "application/json"


@dataclass(frozen=True)
class Request:
    """A whole request. `params` are the named parts of its path."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    params: Mapping[str, str]


Handler = Callable[[Request], Response | Awaitable[Response]]


class TooLarge(Exception):
    """A body beyond MAX_BODY bytes, as sent or decompressed."""


async def whole(incoming: Incoming) -> Request:
    """The request once all of its body is there. Raises TooLarge."""
    parts, size = [], 0
    async for part in incoming.stream():
        size += len(part)
        if size > MAX_BODY:
            raise TooLarge(f"the body exceeds {MAX_BODY} bytes; send less at once")
        parts.append(part)
    return Request(
        incoming.url.path,
        incoming.query_params,
        incoming.headers,
        b"".join(parts),
        incoming.path_params,
    )
