"""The bodies of requests: decompressed, and read as JSON."""

from __future__ import annotations

import orjson
import zstandard

from harness.engine import fields
from harness.engine.errors import RequestError
from harness.engine.http import MAX_BODY, Request, TooLarge


def plain_body(request: Request) -> bytes:
    """The body, decompressed. Raises RequestError, or TooLarge beyond MAX_BODY."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding == "identity":
        return request.body
    if encoding != "zstd":
        raise RequestError(f"Content-Encoding {encoding!r}; zstd and identity are accepted")
    try:
        with zstandard.ZstdDecompressor().stream_reader(request.body) as reader:
            raw = reader.read(MAX_BODY + 1)
    except zstandard.ZstdError as error:
        raise RequestError(f"the body is not valid zstd ({error})") from None
    if len(raw) > MAX_BODY:
        raise TooLarge(f"the body exceeds {MAX_BODY} bytes when decompressed")
    return raw


def json_body(request: Request) -> fields.Json:
    """The body as a JSON object; none at all is an empty one. Raises RequestError."""
    raw = plain_body(request)
    try:
        body = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON ({error})") from None
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    return body
