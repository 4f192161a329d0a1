"""Figures of a step, computed again from its stored rollouts, by code that shares nothing.

Plain Python over plain lists, token by token: neither the estimators nor the losses nor the
staleness metrics of `harness.methods` are used here, so that a mistake in them shows.
"""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from harness.cards import Arm
from harness.records import StepRecord, rewards_of

PREFIX = "staleness/"
KEPT = "kept/"
TAIL_TOKENS = 200
BUCKETS = ("1", "2", "3-5", "6-7", "other")


class Token(NamedTuple):
    """One action token: behaviour and learner log-prob, advantage, and its rollout's group."""

    behaviour: float
    learner: float
    advantage: float
    successes: float
    ranks: tuple[int, ...]
    """Places of its rollout in the group by reward, 1 the best; several if rewards tie."""
    rollout: int
    turn: int
    """Which turn of its episode sampled it, counted from 0."""

    @property
    def ratio(self) -> float:
        """The learner's probability over the behaviour policy's."""
        return math.exp(self.learner - self.behaviour)

    def silenced(self, low: float, high: float) -> bool:
        """Whether the clip takes this token's gradient away."""
        if self.advantage > 0:
            return self.ratio > high
        return self.advantage < 0 and self.ratio < low


def tokens_of(record: StepRecord) -> list[Token]:
    """The step's action tokens; advantages as the wire carries them, in float32."""
    found: list[Token] = []
    rollouts = 0
    for group in record["groups"]:
        rewards = rewards_of(group)
        for rollout in group["rollouts"]:
            above = sum(other > rollout["reward"] for other in rewards)
            tied = sum(other == rollout["reward"] for other in rewards)
            ranks = tuple(range(above + 1, above + tied + 1))
            advantage = float32(rollout["advantage"])
            found += [
                Token(q, p, advantage, sum(rewards), ranks, rollouts, k)
                for k, turn in enumerate(rollout["turns"])
                for q, p in zip(turn["logprobs_T"], turn["learner_logprobs_T"], strict=True)
            ]
            rollouts += 1
    return found


def kept_figures(record: StepRecord, low: float, high: float) -> dict[str, float]:
    """What the step's `kept/` metrics must be: of the groups whose rewards differ."""
    kept = [group for group in record["groups"] if len(set(rewards_of(group))) > 1]
    rollouts = [rollout for group in kept for rollout in group["rollouts"]]
    figures = {f"{KEPT}rollouts": float(len(rollouts))}
    if not kept:
        return figures
    of_kept = staleness_figures({**record, "groups": kept}, low, high)
    return figures | {
        f"{KEPT}reward": _mean([rollout["reward"] for rollout in rollouts]),
        f"{KEPT}tokens": float(sum(len(t["tokens_T"]) for each in rollouts for t in each["turns"])),
        **{f"{KEPT}{name.removeprefix(PREFIX)}": value for name, value in of_kept.items()},
    }


def staleness_figures(record: StepRecord, low: float, high: float) -> dict[str, float]:
    """What the step's `staleness/` metrics must be, by name."""
    tokens = tokens_of(record)
    ratios, logs = sorted(t.ratio for t in tokens), [t.learner - t.behaviour for t in tokens]
    figures = {
        "ratio_mean": _mean(ratios),
        **{f"ratio_p{p}": _quantile(ratios, p / 100) for p in (1, 5, 95, 99)},
        "ratio_max": ratios[-1],
        "kl_k1": -_mean(logs),
        "kl_k2": _mean([x * x / 2 for x in logs]),
        "kl_k3": _mean([math.expm1(x) - x for x in logs]),
        "max_abs_log_ratio": max(map(abs, logs)),
        "clip_raw": _mean([float(not low <= ratio <= high) for ratio in ratios]),
        "clip_active": _mean([float(t.silenced(low, high)) for t in tokens]),
        "entropy_behaviour": -_mean([t.behaviour for t in tokens]),
        "cross_entropy": -_mean([t.learner for t in tokens]),
    }

    for turn in sorted({token.turn for token in tokens}):
        here = [token for token in tokens if token.turn == turn]
        figures |= {f"turn={turn}/{k}": v for k, v in _turn_figures(here, low, high).items()}

    total, clipped = 0.0, 0.0
    largest = max(len(group["rollouts"]) for group in record["groups"])
    binary = {x for group in record["groups"] for x in rewards_of(group)} <= {0.0, 1.0}
    parts = {f"rank={rank}{sign}": [0.0, 0.0] for rank in range(1, largest + 1) for sign in "+-"}
    parts |= {f"k={name}": [0.0, 0.0] for name in BUCKETS} if binary else {}
    for token in tokens:
        weight, lost = abs(token.advantage), token.silenced(low, high)
        total += weight
        clipped += weight * lost
        shares = dict.fromkeys(_rank_names(token), 1.0 / len(token.ranks))
        shares |= {f"k={_bucket(token.successes)}": 1.0} if binary else {}
        for name, share in shares.items():
            parts[name][0] += weight * share
            parts[name][1] += weight * share * lost
    figures |= {"mass_total": total, "mass_clipped": clipped}
    figures["mass_fraction"] = clipped / total if total else 0.0
    if binary:
        low_k = parts["k=1"][1] + parts["k=2"][1]
        figures["mass_low_minus_high"] = (low_k - (clipped - low_k)) / total if total else 0.0
    for name, (whole, lost_part) in parts.items():
        figures |= {f"mass/{name}/total": whole, f"mass/{name}/clipped": lost_part}
    return {f"{PREFIX}{name}": value for name, value in figures.items()}


def _turn_figures(tokens: Sequence[Token], low: float, high: float) -> dict[str, float]:
    """KL, clipping and ratio quantiles of one turn; no first or last percentile of few tokens."""
    ratios, logs = sorted(t.ratio for t in tokens), [t.learner - t.behaviour for t in tokens]
    quantiles = (1, 5, 95, 99) if len(tokens) >= TAIL_TOKENS else (5, 95)
    return {
        "tokens": float(len(tokens)),
        "trajectories": float(len({token.rollout for token in tokens})),
        "kl_k1": -_mean(logs),
        "kl_k2": _mean([x * x / 2 for x in logs]),
        "kl_k3": _mean([math.expm1(x) - x for x in logs]),
        "clip_raw": _mean([float(not low <= ratio <= high) for ratio in ratios]),
        **{f"ratio_p{p}": _quantile(ratios, p / 100) for p in quantiles},
    }


def loss_and_surrogate(arm: Arm, record: StepRecord) -> tuple[float, float, float]:
    """The arm's loss, what forward_backward_custom reports for it, and the scale sum |r A|.

    The surrogate is the sum of p times the loss's derivative by p: a cross-entropy.
    """
    tokens = tokens_of(record)
    gradient = loss_gradient(arm, tokens)
    surrogate = [slope * t.learner for slope, t in zip(gradient, tokens, strict=True)]
    scale = [abs(t.ratio * t.advantage) * max(1.0, abs(t.learner)) for t in tokens]
    return loss_value(arm, tokens), math.fsum(surrogate), math.fsum(scale)


def loss_value(arm: Arm, tokens: Sequence[Token]) -> float:
    """The arm's loss: the sum over tokens of -rA, or of -min(rA, clip(r) A) if it clips."""
    low, high = _loss_bounds(arm)
    return math.fsum(
        -min(t.ratio * t.advantage, min(max(t.ratio, low), high) * t.advantage) for t in tokens
    )


def loss_gradient(arm: Arm, tokens: Sequence[Token]) -> list[float]:
    """The loss's derivative by each token's log-prob under the learner: -rA, 0 where clipped."""
    bounds = _loss_bounds(arm)
    return [0.0 if t.silenced(*bounds) else -t.ratio * t.advantage for t in tokens]


def _loss_bounds(arm: Arm) -> tuple[float, float]:
    if arm.loss != "ppo":
        return 0.0, math.inf
    return arm.loss_config["clip_low_threshold"], arm.loss_config["clip_high_threshold"]


def float32(value: float) -> float:
    """The value as four bytes carry it."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


def _rank_names(token: Token) -> list[str]:
    if token.advantage == 0:
        return []
    return [f"rank={rank}{'+' if token.advantage > 0 else '-'}" for rank in token.ranks]


def _bucket(successes: float) -> str:
    if successes in (1, 2):
        return f"{successes:.0f}"
    if successes in (3, 4, 5):
        return "3-5"
    return "6-7" if successes in (6, 7) else "other"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _quantile(ascending: Sequence[float], q: float) -> float:
    place = q * (len(ascending) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)
