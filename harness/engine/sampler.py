"""Continuous batched sampling with a key/value cache, one batch per set of weights.

What holds. The tokens and log-probs of a sequence depend on (weights, prompt, sampling parameters,
seed, sample index) and on nothing else that is served: for one build of torch and one kind of CPU,
bit for bit. By construction,
  - attention adds up a row in blocks whose edges depend on the position alone (`decoder`);
  - a prompt is padded to a length that depends on the prompt alone;
  - random numbers come from a stream of the sequence's own.
How many rows are computed together is what a kernel could still go by: `kernel_probe` finds out at
the engine's start, and the `Arrangement` has no more rows together than keep their bits. Products
of fewer than `ROW_STEP` rows take other kernels, so batches are padded to a multiple of it.
What does not hold: equal bits on another kind of CPU or another build of torch; there, log-probs
agree to about 1e-6 and a token changes where two candidates are that close.

Log-probs are log-softmax of the raw logits: no temperature, no top-k, no top-p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from harness.engine.architecture import DecoderConfig, Weights
from harness.engine.arrangement import FREE, ROW_STEP, Arrangement
from harness.engine.cache import BLOCK, Cache
from harness.engine.choosing import choose_tokens
from harness.engine.decoder import decode_step
from harness.engine.errors import RequestError
from harness.engine.prompts import PromptReader
from harness.engine.rope import Rope
from harness.engine.sequences import MAX_ROWS, Pool, Sampled

CACHE_BYTES = 1 << 30


class Batch:
    """The sequences that one worker is sampling from one set of weights.

    `pool` is shared with the other workers and read under `lock`. `cache` may be one that another
    batch has left behind: what is in it is masked, and all of it is finite.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        rope: Rope,
        decode: Callable[[Sequence[int]], str],
        pool: Pool,
        lock: AbstractContextManager[object],
        workers: int,
        cache: Cache | None = None,
        arrangement: Arrangement = FREE,
    ) -> None:
        self.config, self.weights, self.rope, self.decode = config, weights, rope, decode
        self.pool, self._lock, self._workers = pool, lock, workers
        self.rows: list[Sampled] = []
        self._arrangement = arrangement
        self._reader = PromptReader(config, weights, rope, arrangement)
        self.cache = cache or Cache(config, ROW_STEP, BLOCK)
        self.cache_is_clean = True
        self._tokens = np.zeros(MAX_ROWS, dtype=np.int64)
        self._positions = np.zeros(MAX_ROWS, dtype=np.int64)

    @property
    def busy(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.rows)

    @torch.inference_mode()
    def advance(self) -> None:
        """Start waiting sequences if rows are free, else give every row its next token."""
        starting = self._take()
        if starting:
            self._start(starting)
        elif self.rows:
            self._step()

    def fail(self, error: Exception) -> None:
        """Give up every sequence of this batch: its requests end with `error`."""
        self.cache_is_clean = False
        rows, self.rows = self.rows, []
        for request in {id(s.request): s.request for s in rows}.values():
            if request.error is None:
                request.error = error
                request.finished(request)

    def _take(self) -> list[Sampled]:
        """This worker's share of the waiting sequences, as far as rows are free."""
        if not self.pool.waiting or len(self.rows) >= self._max_rows(self.cache.capacity):
            return []
        with self._lock:
            share = max(ROW_STEP, -(-len(self.pool.waiting) // self._workers))
            taken = self.pool.take(self._room(islice(self.pool.waiting, share)))
        return [sequence for sequence in taken if sequence.request.error is None]

    def _room(self, waiting: Iterable[Sampled]) -> int:
        """How many of these, from the first on, fit beside the rows that there are."""
        room = longest = 0
        for sequence in waiting:
            longest = max(longest, sequence.request.length)
            if len(self.rows) + room >= self._max_rows(self._capacity(longest)):
                break
            room += 1
        return room

    def _capacity(self, length: int) -> int:
        """Positions of a cache that has room for rows of this length, and for those of now."""
        return max(_up(length, BLOCK), self.cache.capacity)

    def _max_rows(self, capacity: int) -> int:
        """Rows of so many positions that fit into `CACHE_BYTES`; ROW_STEP of them always do."""
        fitting = CACHE_BYTES // self.config.cache_bytes(capacity)
        return max(ROW_STEP, min(MAX_ROWS, fitting // ROW_STEP * ROW_STEP))

    def _start(self, starting: list[Sampled]) -> None:
        """Give each sequence a row of the cache holding its prompt, and its first token."""
        first = len(self.rows)
        self.rows.extend(starting)
        prompts = self._reader.read(starting)
        self._reserve(max(s.request.length for s in starting))
        for row, (sequence, prompt) in enumerate(zip(starting, prompts, strict=True), first):
            length = len(sequence.request.prompt_N)
            self.cache.write_row(row, prompt.kept, 0, length)
            self._positions[row] = length - 1
        logits = torch.stack([prompt.logits_V for prompt in prompts])
        self._choose(starting, self._arrangement.in_parts(_log_softmax, logits), first)

    def _reserve(self, length: int) -> None:
        """Have a cache for this batch's rows, the longest of which are to have this length."""
        needed, capacity = _up(len(self.rows), ROW_STEP), self._capacity(length)
        if needed > self.cache.rows or capacity > self.cache.capacity:
            # longer rows: those that the bound no longer allows are idle
            kept = min(self.cache.rows, self._max_rows(capacity))
            self.cache = self.cache.resized(max(needed, kept), capacity)

    def _step(self) -> None:
        """One decoding step of all rows and of idle ones, in parts that keep their bits."""
        size = self._arrangement.padded(len(self.rows))
        self._positions[len(self.rows) : size] = 0
        self.rope.reserve(int(self._positions[:size].max()) + 1)
        step = min(size, self._arrangement.step_rows)
        parts = [self._part(first, step) for first in range(0, size, step)]
        logprobs = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._choose(self.rows[:], logprobs[: len(self.rows)], first_row=0)

    def _part(self, first: int, rows: int) -> Tensor:
        """Log-probs `[rows, V]` behind these rows of the cache."""
        some = slice(first, first + rows)
        logits = decode_step(
            self.config,
            self.weights,
            self.rope,
            self.cache.part(first, rows),
            torch.from_numpy(self._tokens[some]),
            torch.from_numpy(self._positions[some]),
        )
        return _log_softmax(logits)

    def _choose(self, sequences: list[Sampled], logprobs: Tensor, first_row: int) -> None:
        """Sample a token for each sequence; finished ones leave their row."""
        chosen = choose_tokens(logprobs, sequences)
        taken = logprobs[torch.arange(len(sequences)), chosen].tolist()
        if any(math.isnan(lp) for lp in taken):
            raise RequestError("the model's logits are not finite; its weights have diverged")
        finished = []
        for at, (sequence, token) in enumerate(zip(sequences, chosen.tolist(), strict=True)):
            sequence.tokens.append(token)
            sequence.logprobs.append(taken[at])
            row = first_row + at
            self._tokens[row] = token
            self._positions[row] += 1
            if self._is_finished(sequence, token):
                finished.append(row)
        for row in reversed(finished):
            self._leave(row)

    def _is_finished(self, sequence: Sampled, token: int) -> bool:
        params = sequence.request.params
        sequence.stopped = token in params.stop_ids or (
            bool(params.stop_strings) and self._ends_with_stop(sequence)
        )
        return sequence.stopped or len(sequence.tokens) >= params.max_tokens

    def _ends_with_stop(self, sequence: Sampled) -> bool:
        """Whether a stop string is in the text; a token holds at least one byte of it."""
        stops = sequence.request.params.stop_strings
        window = max(len(stop.encode()) for stop in stops) + 8
        text = self.decode(sequence.tokens[-window:])
        return any(stop in text for stop in stops)

    def _leave(self, row: int) -> None:
        """Drop a finished row; the last row takes its place."""
        sequence, last = self.rows[row], len(self.rows) - 1
        if row != last:
            self.rows[row] = self.rows[last]
            self._tokens[row], self._positions[row] = self._tokens[last], self._positions[last]
            self.cache.move_row(last, row, int(self._positions[last]))
        self.rows.pop()
        sequence.request.sequence_done()


def _log_softmax(logits_M_V: Tensor) -> Tensor:
    return logits_M_V.log_softmax(-1)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
