"""What the engine is measured against: plain torch loops, same model, same tokens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine import decoder
from harness.engine.architecture import DecoderConfig, Weights
from harness.engine.cache import Cache
from harness.engine.decoder import decode_step, full_pass
from harness.engine.lora import LoraConfig, LoraLayout
from harness.engine.rope import Rope

CORES = os.cpu_count() or 1


def decode(config: DecoderConfig, weights: Weights, prompts_B_T: Tensor, new: int) -> None:
    """Prefill, then `new` tokens a row drawn from the softmax, in one batch with all cores."""
    with _threads(CORES):
        _decode(config, weights, prompts_B_T, new)


def decode_in_parts(config: DecoderConfig, weights: Weights, prompts_B_T: Tensor, new: int) -> None:
    """The same, the batch dealt out to one thread a core: faster where cores are shared."""
    with _threads(1):
        parts = [
            threading.Thread(target=_decode, args=(config, weights, part, new))
            for part in prompts_B_T.chunk(CORES)
        ]
        for part in parts:
            part.start()
        for part in parts:
            part.join()


@torch.inference_mode()
def _decode(config: DecoderConfig, weights: Weights, prompts_B_T: Tensor, new: int) -> None:
    rows, width = prompts_B_T.shape
    rope, cache = Rope(config), Cache(config, rows, width + new)
    hidden, kept = full_pass(config, weights, rope, prompts_B_T)
    for row in range(rows):
        cache.write_row(row, kept, row, width)
    logits = F.linear(hidden[:, -1], weights.unembed_V_D)
    for at in range(width, width + new):
        lp = logits.log_softmax(-1)
        tokens = torch.multinomial(lp.exp(), 1)
        lp.gather(-1, tokens)
        logits = decode_step(config, weights, rope, cache, tokens[:, 0], torch.full((rows,), at))


class LoraStep:
    """One LoRA step as x Wᵀ + s (x Aᵀ) Bᵀ: one padded batch, autograd, torch's AdamW, all cores."""

    def __init__(self, config: DecoderConfig, weights: Weights, rank: int) -> None:
        layout = LoraLayout(config, LoraConfig(rank))
        self._config, self._weights, self._rope = config, weights, Rope(config)
        self._scale = layout.scale
        self._pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for target, a, b in layout.views(layout.fresh()):
            pair = (a.clone().requires_grad_(), b.clone().requires_grad_())
            self._pairs.setdefault(target.matrix, []).append(pair)
        self._names = {id(weights.matrix(n)): n for n in layout.matrices if n != "unembed"}
        self._optimizer = torch.optim.AdamW(
            [p for pairs in self._pairs.values() for pair in pairs for p in pair], lr=1e-5
        )

    def __call__(self, tokens_B_T: Tensor) -> None:
        """Importance-sampling loss with ratio 1 at log-prob -4 and advantage 1, and one step."""
        with _threads(CORES), self._adapted():
            hidden, _ = full_pass(self._config, self._weights, self._rope, tokens_B_T[:, :-1])
            logits = self._linear(hidden, self._weights.unembed_V_D, "unembed")
            lp = logits.log_softmax(-1).gather(-1, tokens_B_T[:, 1:, None])
            (-(lp + 4).exp()).sum().backward()  # type: ignore[no-untyped-call] # torch's own
            self._optimizer.step()
            self._optimizer.zero_grad()

    def _linear(self, x: Tensor, weight: Tensor, name: str | None = None) -> Tensor:
        name = name or self._names.get(id(weight))
        out = F.linear(x, weight)
        if name is None:
            return out
        low_rank = [F.linear(F.linear(x, a), b) for a, b in self._pairs[name]]
        return out + self._scale * torch.cat(low_rank, -1)

    @contextmanager
    def _adapted(self) -> Iterator[None]:
        """The decoder's matrix products with the adapters beside them."""
        plain, decoder.F = decoder.F, _Functional(self._linear)  # type: ignore[assignment] # a stand-in
        try:
            yield
        finally:
            decoder.F = plain


class _Functional:
    """torch.nn.functional with another `linear`."""

    def __init__(self, linear: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.linear = linear

    def __getattr__(self, name: str) -> object:
        return getattr(F, name)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
