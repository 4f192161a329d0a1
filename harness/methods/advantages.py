"""Advantages: what each rollout is worth against its peers.

Group estimators take `rewards_P_G`, P prompts with G rollouts each, and return the same shape.
Batch estimators take `rewards_P`, one rollout of each of P prompts. All are computed in float64,
and a group whose rewards are all equal has advantages of exactly 0.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import RunError, StatisticsError
from harness.methods.arrays import FloatArray, finite, same_shape
from harness.methods.kernels import loo_weights, uniform_loo_weights

GroupEstimator = Callable[[ArrayLike], FloatArray]


def group_mean(rewards_P_G: ArrayLike) -> FloatArray:
    """A_i = r_i - mean(r), within each group, without a division by the standard deviation.

    Source: Dr. GRPO, arXiv 2503.20783; the stock cookbook's `compute_advantages`.

    Returns:
        shape (P, G). A group of one has the advantage 0.

    Raises:
        RunError: a reward is NaN or infinite; the message names its position.
        StatisticsError: the rewards are not a non-empty (P, G) array.
    """
    return _centred(finite(rewards_P_G, "reward", ndim=2))


def group_std(rewards_P_G: ArrayLike, ddof: int, eps: float) -> FloatArray:
    """A_i = (r_i - mean(r)) / (std(r) + eps), within each group.

    Source: GRPO, arXiv 2402.03300. Implementations differ in both settings: torch's `std` has
    ddof 1, and eps is added to the standard deviation, not to the variance.

    Args:
        rewards_P_G: shape (P, G).
        ddof: 0 divides the sum of squares by G, 1 by G - 1.
        eps: added to the standard deviation, 0 or more.

    Returns:
        shape (P, G). A group without spread, a group of one included, has advantages 0.

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: ddof is not 0 or 1, eps is negative, or the shape is wrong.
    """
    if ddof not in (0, 1):
        raise StatisticsError(f"ddof is {ddof}; it must be 0 or 1; set it as the card says")
    if not (np.isfinite(eps) and eps >= 0):
        raise StatisticsError(f"eps is {eps}; it must be a finite number of at least 0")
    centred_P_G = _centred(finite(rewards_P_G, "reward", ndim=2))
    # a group of one has no degree of freedom left at ddof 1, and no deviation to divide
    degrees = max(centred_P_G.shape[1] - ddof, 1)
    std_P_1 = np.sqrt(np.square(centred_P_G).sum(axis=1, keepdims=True) / degrees)
    return np.asarray(centred_P_G / np.where(std_P_1 > 0, std_P_1 + eps, 1.0))


def rloo(rewards_P_G: ArrayLike) -> FloatArray:
    """A_i = r_i - mean of the other G - 1 rewards of the group.

    Source: Kool et al. 2019; Ahmadian et al., arXiv 2402.14740. It equals G/(G - 1) times
    `group_mean`.

    Returns:
        shape (P, G).

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: groups of one, which have no other rollout; or the shape is wrong.
    """
    rewards = finite(rewards_P_G, "reward", ndim=2)
    size = rewards.shape[1]
    if size < 2:
        raise StatisticsError(
            f"group size is {size}; leave-one-out within a group needs at least 2; "
            "use a batch baseline such as uniform_loo"
        )
    return np.asarray(_centred(rewards) * (size / (size - 1)))


def maxrl(rewards_P_G: ArrayLike) -> FloatArray:
    """Of a group with k successes in N: N/k - 1 for a success, -1 for a failure, 0 if k = 0.

    Source: the registered card maxrl_lag4_clip_mass_gsm8k_08b. It equals `tailrl` on 0/1 rewards.

    Returns:
        shape (P, G).

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: a reward is neither 0 nor 1, or the shape is wrong.
    """
    rewards = finite(rewards_P_G, "reward", ndim=2)
    _refuse_graded(rewards)
    size = rewards.shape[1]
    successes_P_1 = rewards.sum(axis=1, keepdims=True)
    credited_P_G = rewards * size / np.maximum(successes_P_1, 1.0)
    return np.asarray(np.where(successes_P_1 > 0, credited_P_G - 1.0, 0.0))


def tailrl(rewards_P_G: ArrayLike) -> FloatArray:
    """The gradient of the sum over k of E[best of k] / k, in the released scaling by N.

    With rewards ascending, w_(i) = N * sum_{j <= i} (r_(j) - r_(j-1)) / (N - j + 1) and
    A_(i) = w_(i) - mean(w). The first gap is the same term in every w and cancels, so it is left
    out: a shift of all rewards changes nothing, and equal rewards get equal advantages.

    Source: TailRL, arXiv 2609.02987; the registered card tailrl_lag8_sec_search_4b.

    Returns:
        shape (P, G), in the order of the rewards given.

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: the shape is wrong.
    """
    rewards = finite(rewards_P_G, "reward", ndim=2)
    size = rewards.shape[1]
    order_P_G = np.argsort(rewards, axis=1, kind="stable")
    ascending_P_G = np.take_along_axis(rewards, order_P_G, axis=1)
    gaps_P_G = np.diff(ascending_P_G, axis=1, prepend=ascending_P_G[:, :1])
    at_or_above_G = np.arange(size, 0, -1)
    sorted_weights_P_G = np.cumsum(size * gaps_P_G / at_or_above_G, axis=1)
    weights_P_G = np.empty_like(sorted_weights_P_G)
    np.put_along_axis(weights_P_G, order_P_G, sorted_weights_P_G, axis=1)
    return _centred(weights_P_G)


def tail_quantile(rewards_P_G: ArrayLike, quantile: float) -> FloatArray:
    """A_i = max(r_i - mean(r), 0) where r_i lies above the group's quantile, else 0.

    The quantile interpolates linearly between order statistics, and "above" is strict, so a
    reward that ties with it is not credited. With 0/1 rewards, N = 8 and the quantile 0.75, one
    or two successes are credited, and a group with three or more is silent. No advantage is
    negative, and those of a group do not sum to 0.

    Source: the registered card tailrl_lag4_sensitivity_gsm8k_08b, "only credits rollouts above
    the group's 75th-percentile reward", applied to centred rewards.

    Args:
        rewards_P_G: shape (P, G).
        quantile: strictly between 0 and 1; the card's is 0.75.

    Returns:
        shape (P, G).

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: the quantile is out of range, or the shape is wrong.
    """
    if not 0.0 < quantile < 1.0:
        raise StatisticsError(f"quantile is {quantile}; it must lie between 0 and 1; set it")
    rewards = finite(rewards_P_G, "reward", ndim=2)
    # measured from the smallest reward, so that a shift of all rewards moves no tie
    above_P_G = rewards - rewards.min(axis=1, keepdims=True)
    threshold_P_1 = np.quantile(above_P_G, quantile, axis=1, keepdims=True)
    # a low quantile of a skewed group can lie below the mean; such rollouts earn no credit
    credited_P_G = np.maximum(_centred(rewards), 0.0)
    return np.asarray(np.where(above_P_G > threshold_P_1, credited_P_G, 0.0))


def gs1(rewards_P: ArrayLike, weights_P_P: ArrayLike) -> FloatArray:
    """A_i = r_i - b_i with b_i = sum_{j != i} w_ij r_j, one rollout a prompt.

    Source: the registered GS1 cards; RLOO with the other prompts of the batch as peers.

    Args:
        rewards_P: shape (P,).
        weights_P_P: leave-one-out weights (zero diagonal, rows sum to 1) from
            `harness.methods.kernels`.

    Returns:
        advantages, shape (P,).

    Raises:
        RunError: a reward or a weight is NaN or infinite.
        StatisticsError: shapes differ, P < 2, or the weights are not leave-one-out weights.
    """
    rewards = finite(rewards_P, "reward", ndim=1)
    return np.asarray(rewards - baselines(rewards, weights_P_P))


def uniform_loo(rewards_P: ArrayLike) -> FloatArray:
    """A_i = r_i - mean of the other P - 1 rewards of the batch: GS1 with uniform weights.

    Returns:
        advantages, shape (P,).

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: P < 2, or the shape is wrong.
    """
    rewards = finite(rewards_P, "reward", ndim=1)
    return gs1(rewards, uniform_loo_weights(len(rewards)))


def baselines(rewards_P: ArrayLike, weights_P_P: ArrayLike) -> FloatArray:
    """b_i = sum_j w_ij r_j, the expected reward of each prompt as its neighbours tell it.

    Returns:
        shape (P,).

    Raises:
        RunError: a reward or a weight is NaN or infinite.
        StatisticsError: shapes differ, P < 2, or the weights are not leave-one-out weights.
    """
    rewards = finite(rewards_P, "reward", ndim=1)
    weights = loo_weights(weights_P_P)
    same_shape("weight matrix", (len(rewards), len(rewards)), weights)
    # relative to one reward: rows sum to 1, and equal rewards then cancel exactly
    return np.asarray(weights @ (rewards - rewards[0]) + rewards[0])


def per_group(estimator: GroupEstimator, groups: Sequence[ArrayLike]) -> list[FloatArray]:
    """Apply a group estimator to groups of different sizes, each by itself.

    Args:
        estimator: a function of `rewards_P_G`, such as `group_mean`.
        groups: one array of rewards per group.

    Returns:
        one array of shape (G,) per group, in the order given.

    Raises:
        RunError: a reward is NaN or infinite; the message names the group.
        StatisticsError: what the estimator raises for that group.
    """
    advantages = []
    for index, group in enumerate(groups):
        rewards_G = np.atleast_1d(np.asarray(group, dtype=np.float64))
        try:
            advantages.append(estimator(rewards_G[np.newaxis])[0])
        except (RunError, StatisticsError) as error:
            raise type(error)(f"group {index}: {error}") from None
    return advantages


def _centred(values_P_G: FloatArray) -> FloatArray:
    """Deviations from the group's mean; exactly 0 where all values of a group are equal."""
    relative_P_G = values_P_G - values_P_G[:, :1]
    return np.asarray(relative_P_G - relative_P_G.mean(axis=1, keepdims=True))


def _refuse_graded(rewards_P_G: FloatArray) -> None:
    graded = (rewards_P_G != 0.0) & (rewards_P_G != 1.0)
    if graded.any():
        place = tuple(int(axis[0]) for axis in np.nonzero(graded))
        raise StatisticsError(
            f"reward at position {place} is {rewards_P_G[place]}; MaxRL takes 0 and 1 only; "
            "set the format coefficient to 0, or use tailrl"
        )
