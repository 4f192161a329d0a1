"""One LoRA model being trained: token losses, gradient accumulation, AdamW.

Bits: a datum's log-probs depend on the weights and on that datum alone, because a row is padded to
a length that depends on the row alone and the passes do not mix rows; where this processor's
kernels do mix them, each row has a pass of its own (`kernel_probe`). The gradient of a request
depends on the request alone: rows are grouped by padded length, in request order, into
micro-batches of a fixed number of tokens. A request counts as a whole or not at all.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.engine.architecture import DecoderConfig, Weights
from harness.engine.arrangement import FREE, Arrangement
from harness.engine.decoder import full_pass
from harness.engine.errors import RequestError
from harness.engine.lora import LoraLayout
from harness.engine.losses import Config, Loss
from harness.engine.rope import Rope

LENGTH_STEP = 32
MICRO_TOKENS = 1024
MICRO_LOGITS = 1 << 26

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Datum:
    """One row: T input tokens, K targets a position (K is 1 for all losses but cross_entropy).

    `inputs` holds the loss inputs, each `[T, K]`; `flat` says that the client sent 1-D targets.
    """

    tokens_T: IntArray
    targets_T_K: IntArray
    inputs: Mapping[str, FloatArray]
    flat: bool


@dataclass(frozen=True)
class AdamParams:
    """One optimizer step as the client sends it; `grad_clip_norm` 0 means no clipping."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float


@dataclass(frozen=True)
class Moments:
    """AdamW's state: both moments of the flat adapter, and the steps taken."""

    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: int


class Trainee:
    """A LoRA model with its optimizer. `flat` holds the adapter, see `lora.LoraLayout`."""

    def __init__(
        self,
        config: DecoderConfig,
        base: Weights,
        rope: Rope,
        layout: LoraLayout,
        flat: Tensor,
        arrangement: Arrangement = FREE,
    ) -> None:
        self.config, self.base, self.rope, self.layout = config, base, rope, layout
        self.arrangement = arrangement
        self.flat = flat
        self.exp_avg, self.exp_avg_sq = torch.zeros_like(flat), torch.zeros_like(flat)
        self.step = 0
        self._matrices: dict[str, Tensor] = {}
        self._accumulated: dict[str, Tensor] = {}
        self._merge()

    def load(self, flat: Tensor, moments: Moments | None) -> None:
        """Replace the adapter; without `moments` the optimizer starts anew."""
        self.flat.copy_(flat)
        self._accumulated = {}
        if moments is None:
            self.exp_avg.zero_()
            self.exp_avg_sq.zero_()
            self.step = 0
        else:
            self.exp_avg.copy_(moments.exp_avg)
            self.exp_avg_sq.copy_(moments.exp_avg_sq)
            self.step = moments.step
        self._merge()

    def forward_backward(
        self, data: Sequence[Datum], loss: Loss, knobs: Config, forward_only: bool
    ) -> ForwardBackward:
        """The passes of one request, not yet run; `accumulate` its gradient when they are."""
        return ForwardBackward(self, data, loss, knobs, forward_only)

    def accumulate(self, grads: Mapping[str, Tensor]) -> None:
        """Add a request's gradient of the merged matrices. Raises RequestError if not finite."""
        if not all(torch.isfinite(grad).all() for grad in grads.values()):
            raise RequestError("the gradient is not finite; look at the logprobs and advantages")
        for name, grad in grads.items():
            if name in self._accumulated:
                self._accumulated[name] += grad
            else:
                self._accumulated[name] = grad

    def leaves(self) -> dict[str, Tensor]:
        """The merged matrices as leaves of a graph of the caller's own."""
        return {name: m.detach().requires_grad_(True) for name, m in self._matrices.items()}

    @torch.no_grad()
    def optim_step(self, params: AdamParams) -> dict[str, float]:
        """One AdamW step on what has accumulated, which is then zero again."""
        grads = self._accumulated or {n: torch.zeros_like(m) for n, m in self._matrices.items()}
        grad = self.layout.gradient(self.flat, grads)
        norm = grad.double().norm().item()
        if params.grad_clip_norm > 0:
            grad *= min(1.0, params.grad_clip_norm / (norm + 1e-6))
        self._accumulated = {}
        self._adamw(grad, params)
        self._merge()
        return {"grad_norm": norm, "optim_step": float(self.step)}

    def _adamw(self, grad: Tensor, p: AdamParams) -> None:
        """torch.optim.AdamW for one tensor, written out: importing that module takes a second."""
        self.step += 1
        self.flat.mul_(1 - p.learning_rate * p.weight_decay)
        self.exp_avg.lerp_(grad, 1 - p.beta1)
        self.exp_avg_sq.mul_(p.beta2).addcmul_(grad, grad, value=1 - p.beta2)
        rate = p.learning_rate / (1 - p.beta1**self.step)
        scale = math.sqrt(1 - p.beta2**self.step)
        self.flat.addcdiv_(self.exp_avg, (self.exp_avg_sq.sqrt() / scale).add_(p.eps), value=-rate)

    def _merge(self) -> None:
        self.layout.merge(self.base, self.flat, self._matrices)


class ForwardBackward:
    """One request: independent passes over its micro-batches, in any order, by any thread.

    `result` is complete once every pass has run. Gradients are added in the order of the
    micro-batches, whichever ends first.
    """

    def __init__(
        self,
        trainee: Trainee,
        data: Sequence[Datum],
        loss: Loss,
        knobs: Config,
        forward_only: bool,
    ) -> None:
        self._trainee, self._data, self._loss, self._knobs = trainee, data, loss, knobs
        self._forward_only = forward_only
        self._logprobs: list[FloatArray] = [np.empty(0, np.float32)] * len(data)
        self._losses = np.zeros(len(data))
        self._lock = threading.Lock()
        self._grads: dict[str, Tensor] = {}
        self._early: dict[int, tuple[Tensor, ...]] = {}
        self._added = 0
        trainee.rope.reserve(max((padded_length(len(d.tokens_T)) for d in data), default=0))
        shared = trainee.arrangement.shared_passes
        batches = micro_batches(data, trainee.config.vocab) if shared else _one_by_one(data)
        self.passes = [partial(self._run, index, batch) for index, batch in enumerate(batches)]

    def result(self) -> tuple[list[FloatArray], float]:
        """Log-probs per datum in request order and the summed loss; the gradient is accumulated.

        Raises RequestError, with nothing accumulated, if the loss or gradient is not finite.
        """
        bad = np.flatnonzero(~np.isfinite(self._losses))
        if len(bad):
            raise RequestError(
                f"the loss of datum {bad[0]} is {self._losses[bad[0]]}; it must be finite: "
                "look at its logprobs and advantages"
            )
        if not self._forward_only:
            self._trainee.accumulate(self._grads)
        return self._logprobs, float(self._losses.sum())

    def _run(self, index: int, batch: Sequence[int]) -> None:
        """One micro-batch: forward, loss, backward."""
        rows = [self._data[i] for i in batch]
        leaves = self._trainee.leaves()
        with torch.set_grad_enabled(not self._forward_only):
            lp, per_token = self._forward(self._trainee.base.replace(leaves), rows)
        for at, i in enumerate(batch):
            length = len(self._data[i].tokens_T)
            row = lp[at, :length].detach().numpy()
            self._logprobs[i] = row[:, 0].copy() if self._data[i].flat else row.copy()
            self._losses[i] = per_token[at, :length].detach().double().sum().item()
        if not self._forward_only:
            grads = torch.autograd.grad(per_token.sum(), list(leaves.values()))
            self._add(index, list(leaves), grads)

    def _forward(self, weights: Weights, rows: Sequence[Datum]) -> tuple[Tensor, Tensor]:
        """Log-probs of the targets and the loss per token, `[B, T, K]`, of equally padded rows."""
        trainee, length = self._trainee, padded_length(len(rows[0].tokens_T))
        tokens = _stack([row.tokens_T for row in rows], length)
        hidden, _ = full_pass(trainee.config, weights, trainee.rope, tokens)
        logits = F.linear(hidden, weights.unembed_V_D)
        targets = _stack([row.targets_T_K for row in rows], length)
        lp = logits.log_softmax(-1).gather(-1, targets)
        inputs = {
            name: _stack([row.inputs[name] for row in rows], length) for name in self._loss.inputs
        }
        real = _stack([np.ones((len(row.tokens_T), 1), np.float32) for row in rows], length)
        return lp, self._loss.per_token(lp, inputs, self._knobs) * real

    def _add(self, index: int, names: Sequence[str], grads: tuple[Tensor, ...]) -> None:
        with self._lock:
            self._early[index] = grads
            while self._added in self._early:
                for name, grad in zip(names, self._early.pop(self._added), strict=True):
                    if name in self._grads:
                        self._grads[name] += grad
                    else:
                        self._grads[name] = grad
                self._added += 1


def padded_length(length: int) -> int:
    """The length a row is padded to: a function of the row alone."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def rows_of_pass(length: int, vocab: int) -> int:
    """How many rows of this padded length share a pass at most."""
    return max(1, min(MICRO_TOKENS, MICRO_LOGITS // vocab) // length)


def micro_batches(data: Sequence[Datum], vocab: int) -> Iterator[list[int]]:
    """Indices of rows that share a pass: equal padded length and K, in request order."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, datum in enumerate(data):
        key = (padded_length(len(datum.tokens_T)), datum.targets_T_K.shape[1])
        groups.setdefault(key, []).append(index)
    for (length, _), members in sorted(groups.items()):
        size = rows_of_pass(length, vocab)
        for start in range(0, len(members), size):
            yield members[start : start + size]


def _one_by_one(data: Sequence[Datum]) -> Iterator[list[int]]:
    return ([index] for index in range(len(data)))


def _stack(rows: Sequence[npt.NDArray[np.generic]], length: int) -> Tensor:
    """Rows of different lengths as one tensor, zeros behind each."""
    out = np.zeros((len(rows), length, *rows[0].shape[1:]), dtype=rows[0].dtype)
    for at, row in enumerate(rows):
        out[at, : len(row)] = row
    return torch.from_numpy(out)
