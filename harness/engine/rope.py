"""Rotary position tables."""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

from harness.engine.architecture import DecoderConfig, RopeScaling


class Rope:
    """Rotary position tables that grow as longer rows come in.

    `sin` carries the sign of the rotation, so rotating is `x * cos + swap_halves(x) * sin`.
    """

    def __init__(self, config: DecoderConfig) -> None:
        width = config.rotary_width
        exponent = torch.arange(0, width, 2, dtype=torch.float32) / width
        inverse = 1.0 / config.rope_theta**exponent
        if config.rope_scaling is not None:
            inverse = _rescaled(inverse, config.rope_scaling)
        self._inverse = inverse
        self._growing = threading.Lock()
        self.cos_T_K, self.sin_T_K = self._tables(min(512, config.max_positions))

    def reserve(self, length: int) -> None:
        """Make sure that positions below `length` have an entry; from any thread."""
        with self._growing:
            if length > len(self.cos_T_K):
                self.cos_T_K, self.sin_T_K = self._tables(max(length, 2 * len(self.cos_T_K)))

    @torch.inference_mode(mode=False)  # rows may grow while sampling, and then be trained on
    def _tables(self, length: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(length, dtype=torch.float32)[:, None] * self._inverse[None, :]
        sin = angles.sin()
        return torch.cat((angles, angles), -1).cos(), torch.cat((-sin, sin), -1)


def _rescaled(inverse: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: slow frequencies are divided by the factor, those between are interpolated."""
    wavelength = 2 * math.pi / inverse
    low = scaling.original_positions / scaling.low_freq_factor
    high = scaling.original_positions / scaling.high_freq_factor
    smooth = (scaling.original_positions / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - smooth) * inverse / scaling.factor + smooth * inverse
    return torch.where(
        wavelength > low, inverse / scaling.factor, torch.where(wavelength < high, inverse, between)
    )
