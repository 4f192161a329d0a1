"""Kernels with habits that some processor might have, put in the place of torch's own.

Each changes results in the last bits by something that a result must not depend on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT = 2.0**-20


def lengths_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batched products and softmax go by how long their sums are, as MKL does with AVX512."""
    bmm, softmax = torch.bmm, torch.Tensor.softmax

    def habit(a: Tensor, b: Tensor) -> float:
        return 1 + SHIFT * ((a.shape[-1] + b.shape[-1]) // 8 % 7)

    def planted_bmm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        product = bmm(a, b) * habit(a, b)
        return product if out is None else out.copy_(product)

    def planted_add(self: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1) -> Tensor:
        return self.add_(bmm(a, b) * habit(a, b), alpha=alpha)

    def planted_softmax(self: Tensor, dim: int) -> Tensor:
        return softmax(self, dim) * (1 + SHIFT * (self.shape[dim] // 8 % 7))

    monkeypatch.setattr(torch, "bmm", planted_bmm)
    monkeypatch.setattr(
        torch, "baddbmm", lambda c, a, b, *, alpha=1: planted_add(c.clone(), a, b, alpha=alpha)
    )
    monkeypatch.setattr(torch.Tensor, "baddbmm_", planted_add)
    monkeypatch.setattr(torch.Tensor, "softmax", planted_softmax)


def rows_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix product goes by how many rows it has."""
    _plant_linear(monkeypatch, lambda rows: torch.full((rows,), float(rows % 11)))


def places_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix product treats its last rows, those that fill no tile, in a way of their own."""
    _plant_linear(monkeypatch, lambda rows: (torch.arange(rows) % 6 > 3).float())


def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix product comes out otherwise each time."""
    _plant_linear(monkeypatch, torch.rand)


def _plant_linear(monkeypatch: pytest.MonkeyPatch, shift_of_rows: Callable[[int], Tensor]) -> None:
    linear = F.linear

    def planted(x: Tensor, weight: Tensor) -> Tensor:
        shift = shift_of_rows(x.numel() // x.shape[-1]).view(*x.shape[:-1], 1)
        return linear(x, weight) * (1 + SHIFT * shift)

    monkeypatch.setattr(F, "linear", planted)


Plant = Callable[[pytest.MonkeyPatch], None]
