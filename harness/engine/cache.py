"""What decoding keeps of the rows that it is writing."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.engine.architecture import DecoderConfig

Kept = list[tuple[Tensor, Tensor]]


class Cache:
    """What decoding keeps of up to `rows` rows: two tensors per layer.

    Attention: keys `[rows * G, K, capacity]` and values `[rows * G, capacity, K]`, each as the
    product of one query with a whole row reads it fastest. Delta layers: the last inputs of the
    convolution `[rows, W - 1, C]` and the state `[rows, N, K, V]`.
    """

    def __init__(self, config: DecoderConfig, rows: int, capacity: int) -> None:
        self.config, self.rows, self.capacity = config, rows, capacity
        self.entries = [
            self._delta_entry() if config.is_delta(layer) else self._attention_entry()
            for layer in range(config.layers)
        ]

    def write_row(self, row: int, kept: Kept, source: int, length: int) -> None:
        """Take over the first `length` positions of row `source` of a full pass."""
        g = self.config.kv_heads
        at = slice(row * g, (row + 1) * g)
        for layer, ((first, second), (a, b)) in enumerate(zip(self.entries, kept, strict=True)):
            if self.config.is_delta(layer):
                first[row], second[row] = a[source], b[source]
            else:
                first[at, :, :length] = a[source, :, :length].transpose(1, 2)
                second[at, :length] = b[source, :, :length]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another."""
        g = self.config.kv_heads
        to, of = slice(target * g, (target + 1) * g), slice(source * g, (source + 1) * g)
        for layer, (first, second) in enumerate(self.entries):
            if self.config.is_delta(layer):
                first[target], second[target] = first[source], second[source]
            else:
                first[to, :, :length] = first[of, :, :length]
                second[to, :length] = second[of, :length]

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
        return torch.zeros(entries, K, self.capacity), torch.zeros(entries, self.capacity, K)

    def _delta_entry(self) -> tuple[Tensor, Tensor]:
        d = self.config.delta_rule
        state = (self.rows, d.value_heads, d.key_width, d.value_width)
        return torch.zeros(self.rows, d.taps - 1, d.channels), torch.zeros(state)
