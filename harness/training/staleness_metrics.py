"""Staleness figures of one step, from the datums as they were sent and the learner before it moved.

`forward_backward` returns the log-probs at the weights that the loss was evaluated at, so every
figure here is of the learner before the update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.cards import Arm
from harness.errors import RunError
from harness.methods import clip_mass, staleness
from harness.methods.clip_mass import Mass
from harness.methods.losses import clip_bounds
from harness.records import GroupRecord, learner_logprobs_of, rewards_of
from harness.training.datums import NO_TURN

if TYPE_CHECKING:
    import tinker

PREFIX = "staleness/"

LOW_K = ("1", "2")
"""Buckets of success counts that the cards call the low ones."""


def staleness_metrics(
    where: str,
    arm: Arm,
    groups: Sequence[GroupRecord],
    data_D: Sequence[tinker.Datum],
    turns_D_T: Sequence[NDArray[np.int64]],
    prefix: str = PREFIX,
) -> dict[str, float]:
    """Figures by name, all under `prefix`; log-probs in nats, means over action tokens.

    `ratio_*`, `kl_*`, `clip_*` and entropies are as in `harness.methods.staleness`. `mass_total`
    is the sum of |A| and `mass_clipped` that of |A| where the clip is active; `mass_fraction` is
    their quotient, 0 if there is no mass to lose. The same sums by success count
    (`mass/k=1/total`), where rewards are 0 and 1, and by reward rank and sign
    (`mass/rank=1+/total`). `mass_low_minus_high` is the clipped mass of groups with k <= 2 less
    that of all others, over the total. KL, clipping and ratio quantiles come by turn too
    (`turn=0/kl_k3`), with the tokens and trajectories that they are of.

    Args:
        where: names arm and step in errors.
        arm: its clip bounds are the registered ones.
        groups: what is stored of the rollouts.
        data_D: their datums, as they were sent.
        turns_D_T: the turn of each target, -1 where it was not sampled.
        prefix: what every name starts with.

    Raises:
        RunError: a ratio or a figure is not a finite number.
    """
    batch = sent_batch(groups, data_D, turns_D_T)
    low, high = clip_bounds(arm.loss_config)
    ratios = asdict(staleness.ratio_stats(batch))
    del ratios["tokens"]  # it is among the figures of every step
    clipped = staleness.clip_fractions(batch, low, high)
    entropies = staleness.entropy_estimates(batch)
    log_ratio_T = batch.learner_T - batch.behaviour_T
    figures = {
        **{f"ratio_{name}": value for name, value in ratios.items()},
        **{f"kl_{name}": v for name, v in asdict(staleness.kl_estimates(batch)).items()},
        "max_abs_log_ratio": float(np.abs(log_ratio_T).max()),
        "clip_raw": clipped.raw,
        "clip_active": clipped.active,
        "entropy_behaviour": entropies.behaviour,
        "cross_entropy": entropies.cross,
        **mass_figures(batch, low, high),
        **turn_figures(batch, np.concatenate(turns_D_T), low, high),
    }
    for name, value in figures.items():
        if not math.isfinite(value):
            raise RunError(
                f"{where}: {prefix}{name} is {value}, not a finite number; look at the log-probs "
                "that sampler and service returned"
            )
    return {f"{prefix}{name}": float(value) for name, value in figures.items()}


def sent_batch(
    groups: Sequence[GroupRecord],
    data_D: Sequence[tinker.Datum],
    turns_D_T: Sequence[NDArray[np.int64]],
) -> staleness.Batch:
    """The action tokens of a step with behaviour log-probs and advantages as the datums carry them.

    They are read from what was sent and not from the rollouts, so that a wrong datum shows.
    """
    learner = [learner_logprobs_of(each) for group in groups for each in group["rollouts"]]
    sent = {
        key: [
            np.asarray(datum.loss_fn_inputs[key].tolist(), dtype=np.float64)[turn_T != NO_TURN]
            for datum, turn_T in zip(data_D, turns_D_T, strict=True)
        ]
        for key in ("logprobs", "advantages")
    }
    return staleness.Batch.of(
        np.concatenate([np.asarray(row) for row in learner]),
        np.concatenate(sent["logprobs"]),
        np.concatenate(sent["advantages"]),
        np.repeat(np.arange(len(learner)), [len(row) for row in learner]),
        [rewards_of(group) for group in groups],
    )


def turn_figures(
    batch: staleness.Batch, turns_T: NDArray[np.int64], low: float, high: float
) -> dict[str, float]:
    """Figures of each turn that any trajectory had; a quantile that is not reported is left out."""
    figures: dict[str, float] = {}
    by_turn = staleness.by_turn(batch, turns_T[turns_T != NO_TURN], low, high)
    for turn, found in by_turn.items():
        known = {name: value for name, value in asdict(found).items() if value is not None}
        figures |= {f"turn={turn}/{name}": float(value) for name, value in known.items()}
    return figures


def mass_figures(batch: staleness.Batch, low: float, high: float) -> dict[str, float]:
    """Advantage mass, whole and by bucket."""
    weight_T = np.abs(batch.advantages_T)
    active_T = staleness.active_clip(batch, low, high)
    total, clipped = float(weight_T.sum()), float(weight_T[active_T].sum())
    ranks = clip_mass.mass_by_rank(batch, low, high)
    figures = {
        "mass_total": total,
        "mass_clipped": clipped,
        "mass_fraction": share(clipped, total),
        **dict(_sums({f"rank={i + 1}+": mass for i, mass in enumerate(ranks.positive)})),
        **dict(_sums({f"rank={i + 1}-": mass for i, mass in enumerate(ranks.negative)})),
    }
    if all(np.isin(group, (0.0, 1.0)).all() for group in batch.rewards):
        by_k = clip_mass.mass_by_successes(batch, low, high)
        in_low = sum(by_k[name].clipped for name in LOW_K)
        figures["mass_low_minus_high"] = share(2.0 * in_low - clipped, total)
        figures |= dict(_sums({f"k={name}": mass for name, mass in by_k.items()}))
    return figures


def share(part: float, total: float) -> float:
    """part / total, 0 of nothing: a step without advantage mass has none to lose."""
    return part / total if total > 0.0 else 0.0


def _sums(masses: Mapping[str, Mass]) -> Iterator[tuple[str, float]]:
    for name, mass in masses.items():
        yield f"mass/{name}/total", mass.total
        yield f"mass/{name}/clipped", mass.clipped
