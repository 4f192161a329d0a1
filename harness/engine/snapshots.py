"""Immutable weights to sample from: the base model, or the base with an adapter merged in."""

from __future__ import annotations

import threading
from collections import OrderedDict

from torch import Tensor

from harness.engine.architecture import Weights
from harness.engine.lora import LoraLayout

MERGED_BYTES = 1 << 30


class MergedCache:
    """Keeps the most recently used merged copies, up to `MERGED_BYTES`; others are merged anew.

    Merging is a function of base and adapter, so a copy that was dropped comes back bit for bit.
    """

    def __init__(self, base: Weights) -> None:
        self.base = base
        self._lock = threading.Lock()
        self._copies: OrderedDict[Snapshot, tuple[Weights, int]] = OrderedDict()

    def get(self, snapshot: Snapshot) -> Weights:
        """The merged weights of a snapshot."""
        if snapshot.adapter is None:
            return self.base
        with self._lock:
            if snapshot in self._copies:
                self._copies.move_to_end(snapshot)
                return self._copies[snapshot][0]
            layout, flat = snapshot.adapter
            matrices: dict[str, Tensor] = {}
            weights = layout.merge(self.base, flat, matrices)
            size = sum(4 * m.numel() for m in matrices.values())
            self._copies[snapshot] = (weights, size)
            while len(self._copies) > 1 and self._size() > MERGED_BYTES:
                self._copies.popitem(last=False)
            return weights

    def forget(self, snapshot: Snapshot) -> None:
        """Free the copy of a snapshot that nothing refers to any more."""
        with self._lock:
            self._copies.pop(snapshot, None)

    def _size(self) -> int:
        return sum(size for _, size in self._copies.values())


class Snapshot:
    """One set of weights to sample from; equal only to itself."""

    def __init__(self, merged: MergedCache, adapter: tuple[LoraLayout, Tensor] | None) -> None:
        self._merged = merged
        self.adapter = adapter

    @property
    def size(self) -> int:
        """Bytes of the adapter."""
        return 0 if self.adapter is None else 4 * self.adapter[1].numel()

    @property
    def weights(self) -> Weights:
        """The merged weights, from the cache where they are there."""
        return self._merged.get(self)
