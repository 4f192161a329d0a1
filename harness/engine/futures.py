"""Requests that are answered later: submitted once, polled as often as the client likes.

Lives on the event loop's thread; `settle` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import orjson

from harness.engine.http import JSON

KEEP_SECONDS = 900.0
KEEP_BYTES = 256 << 20
ENTRY_BYTES = 2048  # what a future costs beside its answer, roughly

PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class Answer:
    """The body of an answered request and its media type."""

    body: bytes
    media_type: str = JSON


@dataclass
class Future:
    """One request. `answered` is set once, with `answer`."""

    request_id: str
    key: Hashable | None
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Answer | None = None
    answered_at: float = 0.0


def json_answer(content: object) -> Answer:
    """An answer that the SDK reads as JSON."""
    return Answer(orjson.dumps(content))


def failure(message: str, category: str) -> Answer:
    """A failed request; `category` is `user`, `server` or `unknown`."""
    return json_answer({"error": message, "category": category})


class Futures:
    """All requests that may still be polled.

    A request with a key that was seen before is the same request: a client that retries a
    submission gets the first one's id, and nothing is done twice. Answers are kept for
    `KEEP_SECONDS`, and at most `KEEP_BYTES` of them, the futures themselves counted in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_id: dict[str, Future] = {}
        self._by_key: dict[Hashable, Future] = {}
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def open(self, key: Hashable | None) -> tuple[Future, bool]:
        """The future for this key, and whether it is new."""
        if key is not None and key in self._by_key:
            return self._by_key[key], False
        future = Future(uuid.uuid4().hex, key)
        self._by_id[future.request_id] = future
        if key is not None:
            self._by_key[key] = future
        return future, True

    def settle(self, future: Future, answer: Answer) -> None:
        """Answer a request, from any thread."""
        self._loop.call_soon_threadsafe(self._settle, future, answer)

    def find(self, request_id: str) -> Future | None:
        """A request that may still be polled."""
        return self._by_id.get(request_id)

    async def wait(self, future: Future, seconds: float) -> Answer | None:
        """The answer, or None if there is none within `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await future.answered.wait()
        return future.answer

    def _settle(self, future: Future, answer: Answer) -> None:
        if future.answer is not None:
            return
        future.answer, future.answered_at = answer, time.monotonic()
        future.answered.set()
        self._kept[future.request_id] = size = len(answer.body) + ENTRY_BYTES
        self._bytes += size
        self._forget_old()

    def _forget_old(self) -> None:
        limit = time.monotonic() - KEEP_SECONDS
        while self._kept:
            oldest = self._by_id[next(iter(self._kept))]
            if oldest.answered_at >= limit and self._bytes <= KEEP_BYTES:
                return
            self._bytes -= self._kept.pop(oldest.request_id)
            del self._by_id[oldest.request_id]
            if oldest.key is not None:
                del self._by_key[oldest.key]
