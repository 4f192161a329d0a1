"""Who computes what, and when: a few worker threads, each running one torch thread.

Training work is a job on a model's lane: lanes are first-in first-out, and a job may consist of
units that are independent of each other (micro-batches). Sampling work waits in one pool per set of
weights; each worker draws sequences from it into a batch of its own. A worker that has both kinds
of work alternates between them.

Which worker does what never changes a bit of any result: `trainer` adds gradients in the order of
the request, and `sampler` says why a sequence does not depend on its neighbours.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.engine.architecture import DecoderConfig
from harness.engine.arrangement import Arrangement
from harness.engine.cache import Cache
from harness.engine.rope import Rope
from harness.engine.sampler import Batch
from harness.engine.sequences import Pool, SampleRequest
from harness.engine.snapshots import Snapshot

log = logging.getLogger(__name__)

SAMPLING_SLICE = 0.1

Unit = Callable[[], None]


@dataclass
class Job:
    """Work on one model. `prepare` gives its units; `finish` runs once after all of them.

    Whatever goes wrong is handed to `failed`, once; the units that have not started are dropped.
    """

    prepare: Callable[[], Sequence[Unit]]
    finish: Callable[[], None]
    failed: Callable[[Exception], None]


@dataclass
class _Lane:
    """The jobs of one model, in order of arrival; `units` are those of the job at its head."""

    jobs: deque[Job] = field(default_factory=deque)
    units: deque[Unit] = field(default_factory=deque)
    running: int = 0
    prepared: bool = False
    error: Exception | None = None


class Scheduler:
    """Runs jobs and sampling on `workers` threads until `stop`."""

    def __init__(
        self,
        config: DecoderConfig,
        rope: Rope,
        decode: Callable[[Sequence[int]], str],
        workers: int,
        arrangement: Arrangement,
    ) -> None:
        self._config, self._rope, self._decode = config, rope, decode
        self._arrangement = arrangement
        self._changed = threading.Condition()
        self._lanes: dict[str, _Lane] = {}
        self._turns: deque[str] = deque()
        self._pools: dict[Snapshot, Pool] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, args=(workers,), name=f"worker-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, lane: str, job: Job) -> None:
        """Queue a job behind the others of its lane."""
        with self._changed:
            if lane not in self._lanes:
                self._lanes[lane] = _Lane()
                self._turns.append(lane)
            self._lanes[lane].jobs.append(job)
            self._changed.notify_all()

    def sample(self, snapshot: Snapshot, request: SampleRequest) -> None:
        """Queue a request for sequences from these weights."""
        with self._changed:
            pool = self._pools.get(snapshot)
            if pool is None:
                pool = self._pools[snapshot] = Pool()
            pool.add(request)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let every worker end after the unit it is running."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5)

    def _work(self, workers: int) -> None:
        batches: dict[Snapshot, Batch] = {}
        spare: list[Cache] = []
        trained_last = False
        while True:
            with self._changed:
                while True:
                    if self._stopping:
                        return
                    can_sample = bool(batches) or any(p.waiting for p in self._pools.values())
                    task = None if trained_last and can_sample else self._next_unit()
                    patience = self._patience(batches) if task is None and can_sample else 0.0
                    if patience <= 0 and (task is not None or can_sample):
                        break
                    self._changed.wait(patience if patience > 0 else None)
                if task is None:
                    self._open_batches(batches, spare, workers)
            trained_last = task is not None
            if task is not None:
                self._run(*task)
            else:
                self._sample(batches, spare)

    def _patience(self, batches: dict[Snapshot, Batch]) -> float:
        """Seconds to wait for more requests: none while rows are being sampled; lock held."""
        if batches:
            return 0.0
        return max((pool.patience for pool in self._pools.values() if pool.waiting), default=0.0)

    def _next_unit(self) -> tuple[_Lane, str, Unit] | None:
        """A unit that may run now, lanes taking turns; the caller holds the lock."""
        for _ in range(len(self._turns)):
            name = self._turns[0]
            self._turns.rotate(-1)
            lane = self._lanes[name]
            if lane.units:
                lane.running += 1
                return lane, name, lane.units.popleft()
            if lane.jobs and not lane.prepared and not lane.running:
                lane.running += 1
                lane.prepared = True
                return lane, name, lambda lane=lane: self._prepare(lane)
        return None

    def _prepare(self, lane: _Lane) -> None:
        units = lane.jobs[0].prepare()
        with self._changed:
            lane.units.extend(units)
            self._changed.notify_all()

    def _run(self, lane: _Lane, name: str, unit: Unit) -> None:
        try:
            unit()
        except Exception as error:
            with self._changed:
                lane.error = lane.error or error
                lane.units.clear()
        with self._changed:
            lane.running -= 1
            if lane.units or lane.running:
                return
            lane.running = 1  # nobody else starts the next job while this one is being finished
        job, error_ = lane.jobs[0], lane.error
        try:
            if error_ is None:
                job.finish()
            else:
                job.failed(error_)
        except Exception as error:
            job.failed(error)
        with self._changed:
            lane.jobs.popleft()
            lane.running, lane.prepared, lane.error = 0, False, None
            if not lane.jobs:
                del self._lanes[name]
                self._turns.remove(name)
            self._changed.notify_all()

    def _open_batches(
        self, batches: dict[Snapshot, Batch], spare: list[Cache], workers: int
    ) -> None:
        """A batch of this worker's own for every pool with waiting sequences; lock held."""
        for snapshot, pool in self._pools.items():
            if snapshot in batches:
                # another worker may have dropped the pool that ran empty, and a new one been opened
                batches[snapshot].pool = pool
            elif pool.waiting:
                batches[snapshot] = Batch(
                    self._config,
                    snapshot.weights,
                    self._rope,
                    self._decode,
                    pool,
                    self._changed,
                    workers,
                    spare.pop() if spare else None,
                    self._arrangement,
                )

    def _sample(self, batches: dict[Snapshot, Batch], spare: list[Cache]) -> None:
        """Advance this worker's batches in turn for one slice of time."""
        until = time.monotonic() + SAMPLING_SLICE
        while batches and time.monotonic() < until:
            for snapshot, batch in list(batches.items()):
                try:
                    batch.advance()
                except Exception as error:
                    log.exception("sampling failed")
                    batch.fail(error)
                if not batch.busy:
                    with self._changed:
                        if batch.pool.waiting:
                            continue
                        del batches[snapshot]
                        pool = self._pools.get(snapshot)
                        if pool is not None and not pool.waiting:
                            del self._pools[snapshot]
                    if batch.cache_is_clean and not spare:
                        spare.append(batch.cache)
