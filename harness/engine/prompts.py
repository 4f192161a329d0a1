"""Reading prompts: one pass for each, however many requests bring it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.architecture import DecoderConfig, Weights
from harness.engine.arrangement import FREE, Arrangement
from harness.engine.cache import Kept
from harness.engine.decoder import full_pass
from harness.engine.rope import Rope
from harness.engine.sequences import IntArray, PromptScores, Sampled
from harness.engine.trainer import padded_length

PASS_TOKENS = 512
PROMPT_BYTES = 256 << 20


@dataclass(frozen=True)
class ReadPrompt:
    """What decoding needs of a prompt: its `kept`, of one row, and the logits behind it `[V]`."""

    kept: Kept
    logits_V: Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        tensors = [self.logits_V, *(tensor for pair in self.kept for tensor in pair)]
        return sum(tensor.nbytes for tensor in tensors)


class PromptReader:
    """Reads prompts with one set of weights and remembers those used last, `PROMPT_BYTES` of them.

    What is read depends on the prompt alone (see `sampler`), so remembering changes no bit.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        rope: Rope,
        arrangement: Arrangement = FREE,
    ) -> None:
        self._config, self._weights, self._rope = config, weights, rope
        self._arrangement = arrangement
        self._known: OrderedDict[bytes, ReadPrompt] = OrderedDict()
        self._bytes = 0

    def read(self, starting: Sequence[Sampled]) -> list[ReadPrompt]:
        """The prompt of each sequence; scores that a request asks for are left with the request."""
        unread: dict[bytes, list[Sampled]] = {}
        for sequence in starting:
            key = sequence.request.prompt_key
            if key not in self._known or sequence.scores_prompt:
                unread.setdefault(key, []).append(sequence)
        keys = [sequence.request.prompt_key for sequence in starting]
        found = {key: self._known[key] for key in keys if key in self._known}
        for group in _passes(unread.values(), self._arrangement.shared_passes):
            found |= self._pass(group)
        self._remember(found)
        return [found[key] for key in keys]

    def _pass(self, group: Sequence[list[Sampled]]) -> dict[bytes, ReadPrompt]:
        """One pass over prompts of equal padded length, each with the sequences that bring it."""
        requests = [sequences[0].request for sequences in group]
        lengths = [len(request.prompt_N) for request in requests]
        padded = padded_length(lengths[0])
        self._rope.reserve(padded)
        tokens = np.zeros((len(group), padded), dtype=np.int64)
        for at, request in enumerate(requests):
            tokens[at, : lengths[at]] = request.prompt_N
        ends = torch.tensor(lengths)
        hidden, kept = full_pass(
            self._config, self._weights, self._rope, torch.from_numpy(tokens), ends
        )
        logits = self._logits(hidden[torch.arange(len(group)), ends - 1])
        for at, sequences in enumerate(group):
            self._score(sequences, hidden[at, : lengths[at] - 1])
        return {
            request.prompt_key: ReadPrompt(self._of_row(kept, at, lengths[at]), logits[at].clone())
            for at, request in enumerate(requests)
        }

    def _of_row(self, kept: Kept, row: int, length: int) -> Kept:
        """A copy of one row: attention's up to its length, a delta layer's state as a whole."""
        return [
            (first[row : row + 1].clone(), second[row : row + 1].clone())
            if self._config.is_delta(layer)
            else (
                first[row : row + 1, :, :length].clone(),
                second[row : row + 1, :, :length].clone(),
            )
            for layer, (first, second) in enumerate(kept)
        ]

    def _score(self, sequences: Sequence[Sampled], hidden_M_D: Tensor) -> None:
        for sequence in sequences:
            if sequence.scores_prompt:
                request = sequence.request
                request.prompt_scores = _prompt_scores(
                    self._logits(hidden_M_D).log_softmax(-1),
                    request.prompt_N,
                    request.prompt_wanted.top_k,
                )

    def _logits(self, hidden_M_D: Tensor) -> Tensor:
        """Logits for M hidden states."""
        return self._arrangement.in_parts(
            lambda some: F.linear(some, self._weights.unembed_V_D), hidden_M_D
        )

    def _remember(self, found: dict[bytes, ReadPrompt]) -> None:
        for key, prompt in found.items():
            if key not in self._known:
                self._bytes += prompt.size
            self._known[key] = prompt
            self._known.move_to_end(key)
        while self._bytes > PROMPT_BYTES:
            self._bytes -= self._known.popitem(last=False)[1].size


def _passes(unread: Iterable[list[Sampled]], shared: bool) -> Iterator[list[list[Sampled]]]:
    """Prompts of a pass: of equal padded length, as many as stay in the cores' caches, or one."""
    groups: dict[int, list[list[Sampled]]] = {}
    for sequences in unread:
        length = padded_length(len(sequences[0].request.prompt_N))
        groups.setdefault(length, []).append(sequences)
    for length, members in groups.items():
        size = max(1, PASS_TOKENS // length) if shared else 1
        for start in range(0, len(members), size):
            yield members[start : start + size]


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
