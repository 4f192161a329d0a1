"""Does the kernel help here? Candidate baselines on one pool, by the registered definition.

rho, rho_s and B_eff are those of `harness.methods.beff`, which are ours. Temperatures are chosen on
half of the prompts and scored on the other half, every candidate on the same pseudo-batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.cards import Kernel
from harness.lab.pools import Pool
from harness.methods import effective_contributors, kernel_loo_weights, uniform_loo_weights
from harness.methods.arrays import FloatArray, IntArray
from harness.methods.kernels import PromptKernel
from harness.methods.pool import (
    Baseline,
    BaselineScore,
    Design,
    Interval,
    difference,
    kernel_baseline,
    no_baseline,
    score_baselines,
    uniform_baseline,
)

TAUS = (0.02, 0.05, 0.1, 0.2, 0.5)
GROUPS = (2, 4, 8)
UNIFORM = "uniform_loo"


@dataclass(frozen=True)
class Candidate:
    """One baseline on a pool: its score, its Kish contributors, and what to know of it."""

    score: BaselineScore
    contributors: float | None
    note: str = ""

    @property
    def headline(self) -> Interval:
        """rho_s where |s|^2 has a proxy, else rho."""
        return self.score.rho if self.score.rho_s is None else self.score.rho_s


@dataclass(frozen=True)
class Comparison:
    """All candidates on one pool, and the gain over uniform of two kernels.

    `chosen` was the best of the grid on other prompts, `registered` is the card's own.
    """

    pool: Pool
    batch_size: int
    candidates: Mapping[str, Candidate]
    chosen: str
    registered: str
    level: float

    def gain(self, name: str) -> Interval:
        """The headline of a kernel minus that of the uniform baseline, paired by prompt."""
        ours, uniform = self.candidates[name], self.candidates[UNIFORM]
        return difference(ours.headline, uniform.headline, self.level)

    def answer(self, name: str) -> str:
        """Whether a kernel leaves less noise than the plain mean, in a sentence."""
        g, what = self.gain(name), "rho" if self.pool.tokens_N_K is None else "rho_s"
        limits = f"{what} {g.estimate:+.4f} [{g.lower:+.4f}, {g.upper:+.4f}]"
        if g.lower > 0:
            word = "yes: it leaves less noise than the uniform baseline"
        elif g.upper < 0:
            word = "no: it leaves more noise than the uniform baseline"
        else:
            word = "not shown: it can't be distinguished from the uniform baseline"
        return f"does {name} help on {self.pool.name}? {word}; against it {limits}"


def compare(pool: Pool, kernel: Kernel, fitted: PromptKernel, design: Design) -> Comparison:
    """Choose a kernel on half of the prompts, score every candidate on the other half.

    Args:
        pool: at least twice `design.batch_size` prompts.
        kernel: the registered kernel; its tau is added to the grid.
        fitted: TF-IDF as the arms fit it.
        design: pseudo-batches and bootstrap.

    Raises:
        StatisticsError: the pool is too small, or its rewards do not differ.
    """
    order = np.random.default_rng(design.seed).permutation(len(pool.questions))
    half = len(order) // 2
    tune, score = pool.part(order[:half].tolist()), pool.part(order[half:].tolist())
    kernels = {_name(k): k for k in grid(kernel)}
    tuning = _scored(tune, kernels, fitted, design, plain=False)
    chosen = max(kernels, key=lambda name: tuning[name].headline.estimate)
    candidates = _scored(score, kernels, fitted, design, plain=True)
    return Comparison(score, design.batch_size, candidates, chosen, _name(kernel), design.level)


def grid(kernel: Kernel) -> list[Kernel]:
    """The kernels that are scored: softmax at several tau, the registered one's too, and cosine."""
    taus = sorted({*TAUS, *([] if kernel.tau is None else [kernel.tau])})
    soft = [kernel.model_copy(update={"weighting": "softmax", "tau": tau}) for tau in taus]
    return [*soft, kernel.model_copy(update={"weighting": "cosine", "tau": None})]


def lines(comparison: Comparison) -> list[str]:
    """The comparison as a table, the exact points of RLOO, and the answer."""
    pool, batch = comparison.pool, comparison.batch_size
    what = "rho, as no |s|^2 is known" if pool.tokens_N_K is None else (
        "rho_s, with the token count as |s|^2 (OPO's proxy)"
    )  # fmt: skip
    text = [
        f"pool {pool.name}: {pool.about}",
        f"scored on {len(pool.questions)} prompts, batches of {batch}; headline {what}",
        f"{'baseline':22}{'headline':>10}{'95% interval':>20}{'B_eff':>8}{'Kish':>8}",
    ]
    for name, candidate in comparison.candidates.items():
        x = candidate.headline
        kish = "-" if candidate.contributors is None else f"{candidate.contributors:.1f}"
        interval = f"[{x.lower:.4f}, {x.upper:.4f}]"
        row = f"{name:22}{x.estimate:10.4f}{interval:>20}{batch * x.estimate:8.1f}{kish:>8}"
        text.append(f"{row}  {candidate.note}".rstrip())
    text += [f"{f'RLOO G={g}':22}{(g - 1) / g:10.4f}{'exact rho':>20}" for g in GROUPS]
    kernels = {"registered": comparison.registered, "best on other prompts": comparison.chosen}
    text += [f"{what} kernel: {comparison.answer(k)}" for what, k in kernels.items()]
    return [*text, "each interval is of one comparison; nothing is corrected for reading several"]


def batch_mean(_prompts_B: IntArray, rewards_B: FloatArray) -> FloatArray:
    """b_i: the mean of all rewards of the batch, one's own included, so slightly biased."""
    return np.full_like(rewards_B, rewards_B.mean())


def _scored(
    pool: Pool, kernels: Mapping[str, Kernel], fitted: PromptKernel, design: Design, *, plain: bool
) -> dict[str, Candidate]:
    similarity_N_N = fitted.similarity(pool.questions)
    wanted: dict[str, Baseline] = {}
    if plain:
        wanted = {"none": no_baseline, "batch_mean": batch_mean, UNIFORM: uniform_baseline}
    wanted |= {name: kernel_baseline(similarity_N_N, k) for name, k in kernels.items()}
    scores = score_baselines(pool.rewards_N_K, wanted, design, pool.tokens_N_K)
    # Kish sizes on one batch's worth of prompts: they grow with the batch
    some = similarity_N_N[: design.batch_size, : design.batch_size]
    weights = {name: kernel_loo_weights(some, k) for name, k in kernels.items()}
    weights[UNIFORM] = uniform_loo_weights(design.batch_size)
    notes = {"batch_mean": "own reward included: biased, looks better than it is"}
    return {
        name: Candidate(
            score,
            float(np.median(effective_contributors(weights[name]))) if name in weights else None,
            notes.get(name, ""),
        )
        for name, score in scores.items()
    }


def _name(kernel: Kernel) -> str:
    return "cosine" if kernel.tau is None else f"softmax tau {kernel.tau:g}"
