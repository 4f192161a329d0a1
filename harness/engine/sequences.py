"""What is sampled: requests, their sequences, and the pool in which these wait for a row."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.engine.seeds import stream

MAX_ROWS = 64
START_TOKENS = 4096
DRAWS = 256
# seconds, see `Pool.patience`
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

    @property
    def scores_prompt(self) -> bool:
        """Whether reading its prompt is to leave the scores that its request asks for."""
        wanted = self.request.prompt_wanted
        return self.index == 0 and (wanted.logprobs or wanted.top_k > 0)

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
    prompt_key: bytes = field(init=False)
    _left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.sequences = [Sampled(self, index) for index in range(self.num_samples)]
        self._left = self.num_samples
        self.prompt_key = self.prompt_N.tobytes()

    @property
    def length(self) -> int:
        """Tokens that its sequences have at most, the prompt's included."""
        return len(self.prompt_N) + self.params.max_tokens

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
        """At most `room` sequences from the front, and no more than START_TOKENS of new prompts."""
        taken: list[Sampled] = []
        tokens = 0
        while self.waiting and len(taken) < room and tokens < START_TOKENS:
            if not taken or self.waiting[0].request is not taken[-1].request:
                tokens += len(self.waiting[0].request.prompt_N)
            taken.append(self.waiting.popleft())
        return taken
