"""What this processor's float32 kernels make of one row in other company.

Run once at the engine's start, on the model's own weights and through the engine's own passes, one
layer of each kind: every kernel that a pass goes through is tried in the shapes it will have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.architecture import MATRICES, DecoderConfig, Weights
from harness.engine.arrangement import ROW_STEP, Arrangement
from harness.engine.cache import BLOCK, Cache
from harness.engine.decoder import decode_step, full_pass
from harness.engine.rope import Rope
from harness.engine.sequences import MAX_ROWS
from harness.engine.trainer import rows_of_pass

TURN = 3
"""Each time rows are tried so many places further on: among others, elsewhere in memory."""

LENGTHS = (32, 64, 160)

# rows of a step -> how 64 rows may then come to be computed
_EIGHTS = [ROW_STEP] * (MAX_ROWS // ROW_STEP)
_PAIRS = [[n, MAX_ROWS - n] for n in range(ROW_STEP, MAX_ROWS // 2 + 1, ROW_STEP)]
STEPS: dict[int, list[list[int]]] = {
    MAX_ROWS: [_EIGHTS, [MAX_ROWS], *_PAIRS],
    ROW_STEP: [_EIGHTS, _EIGHTS],
    1: [[1] * MAX_ROWS] * 2,
}


@torch.no_grad()
def arrangement_of(config: DecoderConfig, weights: Weights) -> Arrangement:
    """The largest arrangement in which no row's log-probs depend on the other rows.

    Where there is none, rows are computed together as if there were, and `noise` says how far apart
    one row's log-probs then came out.
    """
    generator = torch.Generator().manual_seed(0)
    model = _Model(*_one_layer_of_each(config, weights), generator)
    passes = [_apart(model.passes(length)) for length in LENGTHS]
    found = [_apart(model.same_pass_again()), *passes]
    for step_rows, partitions in STEPS.items():
        found.append(_apart(model.steps(partitions)))
        if found[0] == 0.0 and found[-1] == 0.0:
            return Arrangement(step_rows, not any(passes))
    return Arrangement(noise=max(found))


class _Model:
    """A model of one layer or two, and rows that have come to different positions."""

    def __init__(self, config: DecoderConfig, weights: Weights, generator: torch.Generator) -> None:
        self._config, self._weights, self._rope = config, weights, Rope(config)
        self._generator = generator
        self._tokens = self._random_tokens(MAX_ROWS)
        last = min(2 * BLOCK, config.max_positions) - 1
        self._positions = torch.arange(MAX_ROWS) * 37 % last
        self._cache = Cache(config, MAX_ROWS, 2 * BLOCK)
        for entry in self._cache.entries:
            for kept in entry:
                kept.normal_(generator=generator)

    def steps(self, partitions: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Log-probs `[rows, V]` of the same rows, in these parts and each time in another order."""
        for number, sizes in enumerate(partitions):
            order = torch.arange(MAX_ROWS).roll(number * TURN)
            cache = self._cache.reordered(order)
            tokens, positions = self._tokens[order], self._positions[order]
            parts, first = [], 0
            for size in sizes:
                some = slice(first, first + size)
                logits = decode_step(
                    self._config,
                    self._weights,
                    self._rope,
                    cache.part(first, size),
                    tokens[some],
                    positions[some],
                )
                parts.append(logits.log_softmax(-1))
                first += size
            yield torch.cat(parts).roll(-number * TURN, 0)

    def passes(self, length: int) -> Iterator[Tensor]:
        """Log-probs of one row: alone, and in passes of several rows, first and last of them."""
        length = min(length, -(-self._config.max_positions // LENGTHS[0]) * LENGTHS[0])
        self._rope.reserve(length)
        most = rows_of_pass(length, self._config.vocab)
        tokens = self._random_tokens(most, length)
        yield self._pass(tokens[:1])[0]
        for rows in sorted({2, 3, most} & set(range(2, most + 1))):
            with torch.set_grad_enabled(rows == most):  # training may take other kernels
                yield self._pass(tokens[:rows].roll(-1, 0))[-1].detach()

    def same_pass_again(self) -> Iterator[Tensor]:
        """Log-probs of one row alone, twice."""
        tokens = self._random_tokens(1, LENGTHS[0])
        yield self._pass(tokens)
        yield self._pass(tokens.clone())

    def _pass(self, tokens_B_T: Tensor) -> Tensor:
        names = [f"{at}.{n}" for at in range(self._config.layers) for n in MATRICES]
        leaves = {name: self._weights.matrix(name).detach().requires_grad_() for name in names}
        weights = self._weights.replace(leaves)
        hidden, _ = full_pass(self._config, weights, self._rope, tokens_B_T)
        return F.linear(hidden, weights.unembed_V_D).log_softmax(-1)

    def _random_tokens(self, *shape: int) -> Tensor:
        return torch.randint(self._config.vocab, shape, generator=self._generator)


def _apart(outcomes: Iterator[Tensor]) -> float:
    """The largest difference of any outcome from the first; 0 only where all bits are equal."""
    first = next(outcomes)
    return max((first - other).abs().max().item() for other in outcomes)


def _one_layer_of_each(config: DecoderConfig, weights: Weights) -> tuple[DecoderConfig, Weights]:
    """The model cut down to its first layer of each kind."""
    kinds = [config.is_delta(at) for at in range(config.layers)]
    kept = sorted(kinds.index(kind) for kind in set(kinds))
    delta = config.delta and dataclasses.replace(
        config.delta, layers=frozenset(at for at, layer in enumerate(kept) if kinds[layer])
    )
    layers = tuple(weights.layers[at] for at in kept)
    return (
        dataclasses.replace(config, layers=len(kept), delta=delta),
        dataclasses.replace(weights, layers=layers),
    )
