"""Reference losses over the tokens of a batch, in float64: token sums, never normalised.

With p the learner's log-probs, q the behaviour policy's, r = exp(p - q) and A the advantages:

    importance_sampling   -sum r A
    ppo                   -sum min(r A, clamp(r, low, high) A)
    cispo                 -sum stop_gradient(clamp(r, low, high)) A p
    cross_entropy         -sum w p, with the weights w in place of the advantages

Source: the Tinker documentation's loss page. Masked tokens are those with A = 0.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import StatisticsError
from harness.methods.arrays import (
    BoolArray,
    FloatArray,
    finite,
    refuse_non_finite,
    same_shape,
)

CLIP_KEYS = ("clip_low_threshold", "clip_high_threshold")
CLIP = (0.8, 1.2)
"""Bounds of the ratio at which clipping is counted for arms whose loss does not clip."""

LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo")


class Loss(NamedTuple):
    """A loss and its derivative with respect to each of the learner's log-probs."""

    value: float
    gradient_T: FloatArray


def loss_and_gradient(
    name: str,
    logprobs_T: ArrayLike,
    behaviour_T: ArrayLike,
    advantages_T: ArrayLike,
    config: dict[str, float] | None = None,
) -> Loss:
    """The loss and d loss / d logprobs.

    Args:
        name: one of `LOSSES`.
        logprobs_T: the learner's log-probs of the sampled tokens, shape (T,).
        behaviour_T: the sampler's log-probs of the same tokens; not used by cross_entropy.
        advantages_T: advantage per token; for cross_entropy the weight per token.
        config: absolute bounds of the ratio, `clip_low_threshold` and `clip_high_threshold`,
            both required by ppo and cispo, none taken by the others.

    Raises:
        StatisticsError: an unknown name, shapes that differ, missing, unknown or crossed bounds.
        RunError: an input, a ratio or the loss is NaN or infinite.
    """
    logprobs = finite(logprobs_T, "learner log-prob", ndim=1)
    behaviour = finite(behaviour_T, "behaviour log-prob", ndim=1)
    advantages = finite(advantages_T, "advantage", ndim=1)
    same_shape("behaviour log-probs", logprobs.shape, behaviour)
    same_shape("advantages", logprobs.shape, advantages)
    if name in ("ppo", "cispo"):
        low, high = _clip_bounds(name, config or {})
    elif name in LOSSES:
        low, high = _no_config(name, config or {})
    else:
        raise StatisticsError(f"loss {name!r} is unknown; use one of {', '.join(LOSSES)}")

    if name == "cross_entropy":
        terms_T, gradient_T = -logprobs * advantages, -advantages
    elif name == "importance_sampling":
        terms_T = -importance_ratio(logprobs, behaviour) * advantages
        gradient_T = terms_T
    elif name == "ppo":
        ratio_T = importance_ratio(logprobs, behaviour)
        terms_T = -np.minimum(ratio_T * advantages, np.clip(ratio_T, low, high) * advantages)
        active_T = clip_active(ratio_T, advantages, low, high)
        gradient_T = np.where(active_T, 0.0, -ratio_T * advantages)
    else:
        clipped_T = np.clip(importance_ratio(logprobs, behaviour), low, high)
        terms_T, gradient_T = -clipped_T * advantages * logprobs, -clipped_T * advantages
    refuse_non_finite(terms_T, "loss of the token")
    return Loss(float(terms_T.sum()), np.asarray(gradient_T, dtype=np.float64))


def importance_ratio(logprobs_T: ArrayLike, behaviour_T: ArrayLike) -> FloatArray:
    """r = exp(p - q), the learner's probability of a token over the behaviour policy's.

    Returns:
        shape (T,), above 0 up to underflow.

    Raises:
        RunError: a log-prob or a ratio is NaN or infinite.
        StatisticsError: shapes differ.
    """
    logprobs = finite(logprobs_T, "learner log-prob", ndim=1)
    behaviour = finite(behaviour_T, "behaviour log-prob", ndim=1)
    same_shape("behaviour log-probs", logprobs.shape, behaviour)
    with np.errstate(over="ignore"):
        ratio_T = np.exp(logprobs - behaviour)
    refuse_non_finite(ratio_T, "importance ratio")
    return np.asarray(ratio_T)


def clip_active(
    ratio_T: FloatArray, advantages_T: FloatArray, low: float, high: float
) -> BoolArray:
    """Where the clip takes the gradient away: A > 0 and r > high, or A < 0 and r < low.

    Strict on both sides; a token whose advantage is 0 is never clipped.

    Source: the derivative of the ppo loss; PPO, arXiv 1707.06347, equation 7.
    """
    above_T = (advantages_T > 0) & (ratio_T > high)
    below_T = (advantages_T < 0) & (ratio_T < low)
    return np.asarray(above_T | below_T)


def clip_bounds(config: Mapping[str, float]) -> tuple[float, float]:
    """Where clipping is counted: the bounds of a loss that clips, else the usual ones."""
    if all(key in config for key in CLIP_KEYS):
        low, high = (config[key] for key in CLIP_KEYS)
        return low, high
    return CLIP


def _clip_bounds(name: str, config: dict[str, float]) -> tuple[float, float]:
    if set(config) != set(CLIP_KEYS):
        raise StatisticsError(
            f"loss {name}: the config has keys {sorted(config)}; give exactly {sorted(CLIP_KEYS)}, "
            "because servers differ in their defaults"
        )
    low, high = (config[key] for key in CLIP_KEYS)
    if not 0.0 <= low <= high < np.inf:
        raise StatisticsError(
            f"loss {name}: clip bounds {low} and {high}; they bound the ratio itself, "
            "0 <= low <= high, such as 0.8 and 1.2"
        )
    return low, high


def _no_config(name: str, config: dict[str, float]) -> tuple[float, float]:
    if config:
        raise StatisticsError(f"loss {name}: takes no config, got {sorted(config)}; remove it")
    return 0.0, np.inf
