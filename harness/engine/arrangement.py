"""How many rows are computed together, so that none of them can tell.

Kernels may choose how they add up by the number of rows of a product. `kernel_probe` finds out at
the engine's start what this processor's kernels do, and takes the largest arrangement that holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.sequences import MAX_ROWS

ROW_STEP = 8


@dataclass(frozen=True)
class Arrangement:
    """Rows of one decoding step: MAX_ROWS (as many as there are, in steps of 8), exactly 8, or 1.

    `shared_passes` says whether several rows may share a pass over whole rows. `noise` is how far
    log-probs of one row lie apart, in nats, where no arrangement keeps their bits; else 0.
    """

    step_rows: int = MAX_ROWS
    shared_passes: bool = True
    noise: float = 0.0

    def __str__(self) -> str:
        if not self.exact:
            return (
                f"log-probs of one row differ by {self.noise:.2g} nats with what else is computed: "
                "on this processor results can't be repeated bit for bit, only within a tolerance"
            )
        together = "as many as there are" if self.step_rows == MAX_ROWS else self.step_rows
        passes = "share a pass" if self.shared_passes else "each have a pass of their own"
        return f"bits are kept: rows decoded together: {together}; whole rows {passes}"

    @property
    def exact(self) -> bool:
        """Whether the bits of a row depend on that row alone."""
        return self.noise == 0.0

    def padded(self, rows: int) -> int:
        """The rows that are computed for so many, idle ones included."""
        step = min(self.step_rows, ROW_STEP)
        return -(-rows // step) * step

    def in_parts(self, function: Callable[[Tensor], Tensor], x_M_D: Tensor) -> Tensor:
        """`function` of rows, over parts of as many rows as may be computed together."""
        rows = len(x_M_D)
        filled = F.pad(x_M_D, (0, 0, 0, self.padded(rows) - rows))
        if len(filled) <= self.step_rows:
            return function(filled)[:rows]
        parts = [
            function(filled[at : at + self.step_rows])
            for at in range(0, len(filled), self.step_rows)
        ]
        return torch.cat(parts)[:rows]


FREE = Arrangement()
