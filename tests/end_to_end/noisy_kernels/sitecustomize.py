"""Found by Python at its start: engines get matrix products whose last bits differ each time."""

import random
import sys

SHIFT = 2.0**-20

if "harness.engine" in sys.orig_argv:
    import torch
    import torch.nn.functional as F

    _linear = F.linear

    def noisy(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x Wᵀ, off by up to one part in a million."""
        return _linear(x, weight) * (1 + SHIFT * random.random())

    F.linear = noisy
