"""From a submission to its future: deduplication, jobs, and failures as the SDK expects them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence

from harness.engine.errors import RequestError
from harness.engine.fields import Json
from harness.engine.futures import Answer, Future, Futures, failure
from harness.engine.scheduler import Job, Scheduler, Unit

log = logging.getLogger(__name__)


class Requests:
    """Opens futures and hands their work to the scheduler."""

    def __init__(self, futures: Futures, scheduler: Scheduler) -> None:
        self.futures, self.scheduler = futures, scheduler

    def open(self, key: Hashable | None, start: Callable[[Future], None]) -> Future:
        """The future of a request; one with a known key is not started again.

        What `start` raises becomes the future's failure.
        """
        try:
            future, new = self.futures.open(key)
        except TypeError:  # a key made of lists or objects is none
            future, new = self.futures.open(None)
        if new:
            try:
                start(future)
            except Exception as error:
                self.futures.settle(future, failed(error))
        return future

    def submit(
        self,
        future: Future,
        lane: str,
        finish: Callable[[], Answer],
        prepare: Callable[[], Sequence[Unit]] = tuple,
    ) -> None:
        """Queue a request's work behind the others of its lane; `finish` gives the answer."""
        self.scheduler.submit(
            lane,
            Job(
                prepare,
                lambda: self.futures.settle(future, finish()),
                lambda error: self.futures.settle(future, failed(error)),
            ),
        )


def numbered(body: Json) -> Hashable | None:
    """A request's place in its model's sequence: repeated, it is the same request."""
    if body.get("seq_id") is None:
        return None
    return ("model", body.get("model_id"), body.get("seq_id"))


def failed(error: Exception) -> Answer:
    """A failed future: the client's mistake, or the engine's with its traceback in the log."""
    if isinstance(error, RequestError):
        return failure(str(error), "user")
    log.error("request failed", exc_info=error)
    return failure(f"{type(error).__name__}: {error}", "server")
