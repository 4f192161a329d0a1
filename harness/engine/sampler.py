"""Continuous batched sampling with a key/value cache, one batch per set of weights.

What holds. The tokens and log-probs of a sequence depend on (weights, prompt, sampling parameters,
seed, sample index) and on nothing else that is served: for one build of torch, one kind of CPU and
one thread count, bit for bit. It rests on four facts about float32 kernels on a CPU, which the
tests check on the machine at hand:
  - a row of a matrix product does not depend on the other rows, once there are at least
    `ROW_STEP` rows (fewer take another kernel): batches are padded to a multiple of it;
  - softmax and the product with the values do not change when masked positions are appended;
  - a prompt is padded to a length that depends on the prompt alone;
  - random numbers come from a stream of the sequence's own.
What does not hold: equal bits on another kind of CPU, another build of torch or another number of
threads; there, log-probs agree to about 1e-6 and a token changes where two candidates are that
close.

Log-probs are log-softmax of the raw logits: no temperature, no top-k, no top-p.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.decoder import (
    Cache,
    DecoderConfig,
    Kept,
    Rope,
    Weights,
    decode_step,
    full_pass,
)
from harness.engine.errors import RequestError
from harness.engine.seeds import stream
from harness.engine.trainer import padded_length

ROW_STEP = 8
MAX_ROWS = 64
PREFILL_TOKENS = 4096
CACHE_STEP = 64
CACHE_BYTES = 1 << 30
DRAWS = 256
QUIET = 0.002
PATIENCE = 0.01

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens: temperature 0 is greedy, top_k -1 and top_p 1 exclude nothing."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]


@dataclass(frozen=True)
class PromptWanted:
    """What to tell about the prompt: its log-probs, and the `top_k` likeliest per position."""

    logprobs: bool
    top_k: int


@dataclass
class PromptScores:
    """Per prompt position; the first has no log-prob (NaN) and no candidates."""

    logprobs_N: FloatArray
    top_ids_N_K: npt.NDArray[np.int32] | None
    top_logprobs_N_K: FloatArray | None


@dataclass
class Sampled:
    """One sequence being sampled."""

    request: SampleRequest
    index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    _draws: npt.NDArray[np.float64] | None = None
    _stream: np.random.Generator | None = None

    def draw(self) -> float:
        """The uniform number in [0, 1) for the next token."""
        at = len(self.tokens) % DRAWS
        if self._stream is None:
            self._stream = stream("sample", self.request.params.seed, self.index)
        if self._draws is None or at == 0:
            self._draws = self._stream.random(DRAWS)
        return float(self._draws[at])


@dataclass
class SampleRequest:
    """One request: `num_samples` sequences from one prompt."""

    prompt_N: IntArray
    params: SamplingParams
    num_samples: int
    prompt_wanted: PromptWanted
    finished: Callable[[SampleRequest], None]
    sequences: list[Sampled] = field(default_factory=list)
    prompt_scores: PromptScores | None = None
    error: Exception | None = None
    _left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.sequences = [Sampled(self, index) for index in range(self.num_samples)]
        self._left = self.num_samples

    def sequence_done(self) -> None:
        """Count one finished sequence; its siblings may be on other workers."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last and self.error is None:
            self.finished(self)


class Pool:
    """Sequences that wait for a row, all for the same weights; guarded by the scheduler's lock."""

    def __init__(self) -> None:
        self.waiting: deque[Sampled] = deque()
        self._first_arrival = self._last_arrival = 0.0

    def add(self, request: SampleRequest) -> None:
        """Queue a request; its sequences start in order as rows become free."""
        now = time.monotonic()
        if not self.waiting:
            self._first_arrival = now
        self._last_arrival = now
        self.waiting.extend(request.sequences)

    @property
    def patience(self) -> float:
        """Seconds for which it pays to wait for more requests before starting on these.

        Requests that belong together arrive a millisecond or two apart, and eight rows cost hardly
        more than one.
        """
        if len(self.waiting) >= MAX_ROWS:
            return 0.0
        now = time.monotonic()
        return min(QUIET - (now - self._last_arrival), PATIENCE - (now - self._first_arrival))

    def take(self, room: int) -> list[Sampled]:
        """At most `room` sequences from the front whose prompts share a padded length."""
        if not self.waiting or room < 1:
            return []
        length = padded_length(len(self.waiting[0].request.prompt_N))
        room = min(room, max(1, PREFILL_TOKENS // length))
        group: list[Sampled] = []
        kept: deque[Sampled] = deque()
        while self.waiting and len(group) < room:
            sequence = self.waiting.popleft()
            same = padded_length(len(sequence.request.prompt_N)) == length
            (group if same else kept).append(sequence)
        self.waiting.extendleft(reversed(kept))
        return group


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
    ) -> None:
        self.config, self.weights, self.rope, self.decode = config, weights, rope, decode
        self.pool, self._lock, self._workers = pool, lock, workers
        self.rows: list[Sampled] = []
        self.cache = cache or Cache(config, ROW_STEP, CACHE_STEP)
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
        if not self.pool.waiting or len(self.rows) >= self._max_rows():
            return []
        with self._lock:
            share = max(ROW_STEP, -(-len(self.pool.waiting) // self._workers))
            return [
                sequence
                for sequence in self.pool.take(min(self._max_rows() - len(self.rows), share))
                if sequence.request.error is None
            ]

    def _max_rows(self) -> int:
        """Rows that fit into `CACHE_BYTES` at the cache's present capacity."""
        return max(1, min(MAX_ROWS, CACHE_BYTES // self.config.cache_bytes(self.cache.capacity)))

    def _start(self, starting: list[Sampled]) -> None:
        """Prefill prompts of equal padded length and sample the first token of each sequence."""
        self.rows.extend(starting)
        prompts: dict[bytes, int] = {}
        for sequence in starting:
            prompts.setdefault(sequence.request.prompt_N.tobytes(), len(prompts))
        firsts = {prompts[s.request.prompt_N.tobytes()]: s.request for s in reversed(starting)}
        requests = [firsts[i] for i in range(len(firsts))]
        length = padded_length(len(requests[0].prompt_N))
        self.rope.reserve(length)
        tokens = np.zeros((len(requests), length), dtype=np.int64)
        for at, request in enumerate(requests):
            tokens[at, : len(request.prompt_N)] = request.prompt_N
        lengths = torch.tensor([len(r.prompt_N) for r in requests])
        hidden, kept = full_pass(
            self.config, self.weights, self.rope, torch.from_numpy(tokens), lengths
        )
        logits = self._logits(hidden[torch.arange(len(requests)), lengths - 1])
        which = torch.tensor([prompts[s.request.prompt_N.tobytes()] for s in starting])
        self._score_prompts(starting, which.tolist(), hidden)
        self._place(starting, which.tolist(), kept)
        self._choose(starting, logits[which], first_row=len(self.rows) - len(starting))

    def _place(self, starting: list[Sampled], which: list[int], kept: Kept) -> None:
        """Give each starting sequence a row of the cache holding its prompt."""
        need = max(len(s.request.prompt_N) + s.request.params.max_tokens for s in starting)
        self._reserve(len(self.rows), need)
        first = len(self.rows) - len(starting)
        for row, (sequence, prompt) in enumerate(zip(starting, which, strict=True), first):
            n = len(sequence.request.prompt_N)
            self.cache.write_row(row, kept, prompt, n)
            self._positions[row] = n - 1

    def _reserve(self, rows: int, length: int) -> None:
        rows, capacity = _up(rows, ROW_STEP), _up(length, CACHE_STEP)
        if rows > self.cache.rows or capacity > self.cache.capacity:
            self.cache = self.cache.grown(
                max(rows, self.cache.rows), max(capacity, self.cache.capacity)
            )

    def _step(self) -> None:
        """One decoding step of all rows, padded to a multiple of ROW_STEP by idle rows."""
        size = _up(len(self.rows), ROW_STEP)
        self._positions[len(self.rows) : size] = 0
        length = _up(int(self._positions[:size].max()) + 1, CACHE_STEP)
        self.rope.reserve(length)
        logits = decode_step(
            self.config,
            self.weights,
            self.rope,
            self.cache,
            torch.from_numpy(self._tokens[:size]),
            torch.from_numpy(self._positions[:size]),
            length,
        )
        self._choose(self.rows[:], logits[: len(self.rows)], first_row=0)

    def _choose(self, sequences: list[Sampled], logits: Tensor, first_row: int) -> None:
        """Sample a token for each sequence; finished ones leave their row."""
        logprobs = logits.log_softmax(-1)
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

    def _logits(self, hidden_M_D: Tensor) -> Tensor:
        """Logits for M hidden states, padded to the row count that keeps bits equal."""
        rows = len(hidden_M_D)
        padded = F.pad(hidden_M_D, (0, 0, 0, _up(rows, ROW_STEP) - rows))
        return F.linear(padded, self.weights.unembed_V_D)[:rows]

    def _score_prompts(
        self, starting: list[Sampled], which: list[int], hidden_B_T_D: Tensor
    ) -> None:
        for sequence, prompt in zip(starting, which, strict=True):
            request = sequence.request
            wanted = request.prompt_wanted
            if sequence.index == 0 and (wanted.logprobs or wanted.top_k):
                n = len(request.prompt_N)
                lp = self._logits(hidden_B_T_D[prompt, : n - 1]).log_softmax(-1)
                request.prompt_scores = _prompt_scores(lp, request.prompt_N, wanted.top_k)


def choose_tokens(logprobs_B_V: Tensor, sequences: Sequence[Sampled]) -> Tensor:
    """The next token of each sequence, by inversion of its tempered, filtered distribution."""
    greedy = [s.request.params.temperature == 0 for s in sequences]
    if all(greedy):
        return logprobs_B_V.argmax(-1)
    temperatures = torch.tensor(
        [
            1.0 if g else s.request.params.temperature
            for s, g in zip(sequences, greedy, strict=True)
        ],
    )
    tempered = logprobs_B_V / temperatures[:, None]
    mass = (tempered - tempered.amax(-1, keepdim=True)).exp()
    for row, sequence in enumerate(sequences):
        params = sequence.request.params
        if params.top_k > 0 or params.top_p < 1:
            mass[row] = _filtered(mass[row], params.top_k, params.top_p)
    cumulative = mass.cumsum(-1, dtype=torch.float64)
    draws = torch.tensor([s.draw() for s in sequences], dtype=torch.float64)
    drawn = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)
    chosen = drawn[:, 0].clamp_(max=logprobs_B_V.shape[-1] - 1)
    if any(greedy):
        chosen = torch.where(torch.tensor(greedy), logprobs_B_V.argmax(-1), chosen)
    return chosen


def _filtered(mass_V: Tensor, top_k: int, top_p: float) -> Tensor:
    """Zero what is outside the top k, then outside the smallest set that holds `top_p` of it."""
    order = torch.argsort(mass_V, descending=True, stable=True)
    ranked = mass_V[order]
    if top_k > 0:
        ranked[top_k:] = 0
    if top_p < 1:
        before = ranked.cumsum(-1) - ranked
        ranked[before >= top_p * ranked.sum()] = 0
        ranked[0] = mass_V[order[0]]
    return torch.zeros_like(mass_V).scatter_(0, order, ranked)


def _prompt_scores(lp_M_V: Tensor, prompt_N: IntArray, top_k: int) -> PromptScores:
    """Scores of a prompt of N tokens from the N - 1 distributions in front of its tokens."""
    n = len(prompt_N)
    logprobs = np.full(n, np.nan, dtype=np.float32)
    targets = torch.from_numpy(prompt_N[1:])
    logprobs[1:] = lp_M_V.gather(-1, targets[:, None])[:, 0].numpy()
    if not top_k:
        return PromptScores(logprobs, None, None)
    ids = np.zeros((n, top_k), dtype=np.int32)
    values = np.full((n, top_k), -99999.0, dtype=np.float32)
    best = lp_M_V.topk(min(top_k, lp_M_V.shape[-1]), -1)
    ids[1:, : best.indices.shape[1]] = best.indices.numpy()
    values[1:, : best.values.shape[1]] = best.values.numpy()
    return PromptScores(logprobs, ids, values)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
