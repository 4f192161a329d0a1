"""What decoding keeps of the rows that it is writing."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from harness.engine.architecture import DecoderConfig

BLOCK = 64
"""Positions that attention takes together: sums over a row are made and added block by block."""

Kept = list[tuple[Tensor, Tensor]]


class Cache:
    """What decoding keeps of up to `rows` rows: two tensors per layer.

    Attention: keys `[blocks, rows * G, K, BLOCK]` and values `[blocks, rows * G, BLOCK, K]`: a
    block lies in memory as it does in a cache of any other size. Delta layers: the last inputs of
    the convolution `[rows, W - 1, C]` and the state `[rows, N, K, V]`.
    """

    def __init__(self, config: DecoderConfig, rows: int, capacity: int) -> None:
        self.config, self.rows, self.blocks = config, rows, -(-capacity // BLOCK)
        self.entries = [
            self._delta_entry() if config.is_delta(layer) else self._attention_entry()
            for layer in range(config.layers)
        ]

    @property
    def capacity(self) -> int:
        """Positions of a row."""
        return self.blocks * BLOCK

    def write_row(self, row: int, kept: Kept, source: int, length: int) -> None:
        """Take over the first `length` positions of row `source` of a full pass."""
        g = self.config.kv_heads
        at = slice(row * g, (row + 1) * g)
        for layer, ((first, second), (a, b)) in enumerate(zip(self.entries, kept, strict=True)):
            if self.config.is_delta(layer):
                first[row], second[row] = a[source], b[source]
            else:
                for block, start in enumerate(range(0, length, BLOCK)):
                    some = slice(start, min(start + BLOCK, length))
                    count = some.stop - start
                    first[block, at, :, :count] = a[source, :, some].transpose(1, 2)
                    second[block, at, :count] = b[source, :, some]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another."""
        g = self.config.kv_heads
        to, of = slice(target * g, (target + 1) * g), slice(source * g, (source + 1) * g)
        used = -(-length // BLOCK)
        for layer, (first, second) in enumerate(self.entries):
            if self.config.is_delta(layer):
                first[target], second[target] = first[source], second[source]
            else:
                first[:used, to] = first[:used, of]
                second[:used, to] = second[:used, of]

    def part(self, first: int, rows: int) -> Cache:
        """Some of its rows, in the same memory."""
        g, part = self.config.kv_heads, copy(self)
        of, part.rows = slice(first * g, (first + rows) * g), rows
        part.entries = [
            (a[first : first + rows], b[first : first + rows])
            if self.config.is_delta(layer)
            else (a[:, of], b[:, of])
            for layer, (a, b) in enumerate(self.entries)
        ]
        return part

    def reordered(self, rows: Tensor) -> Cache:
        """A copy whose rows are these of its own."""
        g, other = self.config.kv_heads, copy(self)
        of = (rows[:, None] * g + torch.arange(g)).flatten()
        other.rows = len(rows)
        other.entries = [
            (a[rows], b[rows]) if self.config.is_delta(layer) else (a[:, of], b[:, of])
            for layer, (a, b) in enumerate(self.entries)
        ]
        return other

    def resized(self, rows: int, capacity: int) -> Cache:
        """A cache of another size with the content that both have room for."""
        other = Cache(self.config, rows, capacity)
        for new, old in zip(other.entries, self.entries, strict=True):
            for to, of in zip(new, old, strict=True):
                both = tuple(slice(min(sides)) for sides in zip(to.shape, of.shape, strict=True))
                to[both] = of[both]
        return other

    def _attention_entry(self) -> tuple[Tensor, Tensor]:
        entries, K = self.rows * self.config.kv_heads, self.config.head_width
        sides = (self.blocks, entries)
        return torch.zeros(*sides, K, BLOCK), torch.zeros(*sides, BLOCK, K)

    def _delta_entry(self) -> tuple[Tensor, Tensor]:
        d = self.config.delta_rule
        state = (self.rows, d.value_heads, d.key_width, d.value_width)
        return torch.zeros(self.rows, d.taps - 1, d.channels), torch.zeros(state)
