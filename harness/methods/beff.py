"""How good a baseline is: the noise that it leaves, against an oracle.

Nothing here decides a verdict, and B_eff is our definition, not a published one. For prompt x,
reward r, baseline b built without r, score s = grad log pi(y|x), and mu(x) = E[r|x]:

    noise     V(b) = E[(r - b)^2],            V_s(b) = E[(r - b)^2 |s|^2]
    oracle    V*   = V(mu) = E_x Var(r|x),    V_s*   = V_s(mu)
    rho       = V* / V(b), in (0, 1];         rho_s  = V_s* / V_s(b), may pass 1
    B_eff     = B rho_s: rollouts with an oracle baseline that leave the same noise

B_eff covers the noise within prompts only: at equal rollouts, one rollout a prompt also sees more
prompts, so a baseline with the higher rho can still be the worse choice.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import StatisticsError
from harness.methods.advantages import uniform_loo
from harness.methods.arrays import FloatArray, finite, same_shape

PILOT_NOTE = (
    "one rollout per prompt identifies only V(uniform leave-one-out) / V(kernel): the oracle "
    "noise V*, and with it rho and B_eff, needs at least two rollouts of each prompt"
)


@dataclass(frozen=True)
class PilotNoise:
    """What one rollout a prompt tells about a kernel baseline.

    `ratio` = V(uniform)/V(kernel), no unit, above 1 where the kernel leaves less noise. It is NaN
    where the kernel leaves none (every reward equal).
    """

    uniform: float
    kernel: float
    note: str = PILOT_NOTE

    @property
    def ratio(self) -> float:
        """V(uniform leave-one-out) / V(kernel)."""
        return self.uniform / self.kernel if self.kernel > 0 else float("nan")


def executed_noise(rewards_P: ArrayLike, advantages_P: ArrayLike) -> PilotNoise:
    """V(uniform leave-one-out) and V(kernel) of one batch of one rollout a prompt.

    Their ratio is all that such a batch identifies: V* is the variance of the reward within a
    prompt, and one rollout has none. rho and B_eff can't be computed from it.

    Args:
        rewards_P: shape (P,).
        advantages_P: shape (P,), reward minus the kernel baseline.

    Raises:
        RunError: a reward or an advantage is NaN or infinite.
        StatisticsError: the shapes differ, or P < 2.
    """
    uniform_P, kernel_P = uniform_loo(rewards_P), finite(advantages_P, "advantage", 1)
    if kernel_P.shape != uniform_P.shape:
        raise StatisticsError(
            f"{kernel_P.size} advantages for {uniform_P.size} rewards; give one a rollout"
        )
    return PilotNoise(
        uniform=float(np.square(uniform_P).mean()), kernel=float(np.square(kernel_P).mean())
    )


def within_variance(rewards_N_K: ArrayLike) -> FloatArray:
    """Sample variance of each prompt's rewards (ddof 1), shape (N,).

    Raises:
        RunError: a reward is NaN or infinite.
        StatisticsError: K < 2.
    """
    rewards = finite(rewards_N_K, "reward", ndim=2)
    _refuse_few(rewards.shape[1], 2, "V*")
    return np.asarray(rewards.var(axis=1, ddof=1))


def oracle_score_noise(rewards_N_K: ArrayLike, squared_scores_N_K: ArrayLike) -> FloatArray:
    """V_s* of each prompt: the oracle's noise weighted by the squared score norm, shape (N,).

    mu is the mean of the other K - 1 rollouts; its own sampling noise, |s|^2 v/(K - 1) with v
    their sample variance, is subtracted.

    Args:
        rewards_N_K: N prompts with K >= 3 rollouts each, all from one frozen policy.
        squared_scores_N_K: |s|^2 of each rollout, or a proxy of it.

    Raises:
        RunError: an input is NaN or infinite.
        StatisticsError: K < 3, or shapes differ.
    """
    rewards = finite(rewards_N_K, "reward", ndim=2)
    squares = finite(squared_scores_N_K, "squared score norm", ndim=2)
    same_shape("squared score norms", rewards.shape, squares)
    rollouts = rewards.shape[1]
    _refuse_few(rollouts, 3, "V_s*")
    others = rollouts - 1
    relative_N_K = rewards - rewards.mean(axis=1, keepdims=True)
    # sums over the others are sums over all (0 for the first power) without one's own
    others_mean_N_K = -relative_N_K / others
    others_squares_N_K = np.square(relative_N_K).sum(axis=1, keepdims=True) - relative_N_K**2
    others_variance_N_K = (others_squares_N_K - others * others_mean_N_K**2) / (others - 1)
    error_N_K = (relative_N_K - others_mean_N_K) ** 2 - others_variance_N_K / others
    return np.asarray((error_N_K * squares).mean(axis=1))


def _refuse_few(rollouts: int, least: int, what: str) -> None:
    if rollouts < least:
        raise StatisticsError(
            f"{rollouts} rollout(s) per prompt; {what} needs at least {least}; sample more, or "
            "report V(uniform) / V(kernel) only"
        )
