"""From graded rollouts to advantages, by the arm's registered estimator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.cards import Arm
from harness.cards.registration import ESTIMATOR_SETTINGS
from harness.errors import RunError
from harness.methods import advantages, kernels
from harness.records import KernelRecord
from harness.tasks.task import Item


@dataclass(frozen=True)
class Estimate:
    """Advantages per prompt and rollout, and what the baseline was made of."""

    advantages_P_G: list[NDArray[np.float64]]
    kernel: KernelRecord | None


@dataclass(frozen=True)
class Estimator:
    """The advantage estimator of one arm.

    `weights` gives the leave-one-out weights (P, P) of a batch of prompts; an estimator that
    centres within groups has none.
    """

    arm: Arm
    weights: Callable[[Sequence[Item]], NDArray[np.float64]] | None

    def estimate(
        self, problems: Sequence[Item], rewards_P_G: Sequence[Sequence[float]]
    ) -> Estimate:
        """The advantages of one step's rewards.

        Raises:
            RunError: the estimator needs one rollout a prompt and got another number.
        """
        if self.weights is None:
            centred = group_estimator(self.arm.estimator, self.arm.estimator_config)
            return Estimate(advantages.per_group(centred, rewards_P_G), None)
        sizes = sorted({len(rewards_G) for rewards_G in rewards_P_G})
        if sizes != [1]:
            raise RunError(
                f"arm {self.arm.name}: estimator {self.arm.estimator} takes 1 rollout a prompt, "
                f"got {sizes}; give the arm group_size 1"
            )
        rewards_P = np.asarray([rewards_G[0] for rewards_G in rewards_P_G], dtype=np.float64)
        weights_P_P = self.weights(problems)
        return Estimate(
            [np.asarray([advantage]) for advantage in advantages.gs1(rewards_P, weights_P_P)],
            KernelRecord(
                contributors_P=kernels.effective_contributors(weights_P_P).tolist(),
                baselines_P=advantages.baselines(rewards_P, weights_P_P).tolist(),
            ),
        )


def estimator(arm: Arm, train_questions: Sequence[str]) -> Estimator:
    """The estimator of an arm; the kernel of gs1 is fitted once, on the train questions.

    Raises:
        RunError: the arm's estimator is not known here, or lacks what it needs.
    """
    if arm.estimator in GROUP_ESTIMATORS:
        group_estimator(arm.estimator, arm.estimator_config)  # an error now, not at the first step
        return Estimator(arm, None)
    if arm.estimator == "uniform_loo":
        return Estimator(arm, lambda problems: kernels.uniform_loo_weights(len(problems)))
    kernel = arm.kernel
    tuned = kernel is not None and (kernel.tau is not None or kernel.weighting == "cosine")
    if arm.estimator != "gs1" or kernel is None or not tuned:
        raise RunError(
            f"arm {arm.name}: estimator {arm.estimator!r} with kernel {arm.kernel!r} can't be "
            f"made; use {', '.join(GROUP_ESTIMATORS)}, uniform_loo, or gs1 with a kernel, and a "
            "tau if it is a softmax"
        )
    fitted = kernels.fit_tfidf(train_questions, kernel)

    def weights(problems: Sequence[Item]) -> NDArray[np.float64]:
        similarity_P_P = fitted.similarity([problem.question for problem in problems])
        return kernels.kernel_loo_weights(similarity_P_P, kernel)

    return Estimator(arm, weights)


GROUP_ESTIMATORS = ("group_mean", "group_std", "rloo", "maxrl", "tailrl", "tail_quantile")
"""Estimators whose advantages come from the rewards of a rollout's own group alone."""


def group_estimator(name: str, config: Mapping[str, float]) -> advantages.GroupEstimator:
    """A group estimator with its settings; `ddof` is a whole number.

    Raises:
        RunError: settings are missing, or there are some that the estimator does not take.
    """
    wanted = ESTIMATOR_SETTINGS.get(name, frozenset())
    if set(config) != wanted:
        raise RunError(
            f"estimator {name}: the settings are {sorted(config)}, it takes {sorted(wanted)}; "
            "give exactly these in estimator_config"
        )
    settings = {key: int(value) if key == "ddof" else value for key, value in config.items()}
    return partial(getattr(advantages, name), **settings)


def refuse_bad_rewards(
    arm: str, step: int, prompts: Sequence[int], rewards_P_G: Sequence[Sequence[float]]
) -> None:
    """Stop at the first reward that is not a finite number.

    Raises:
        RunError: names arm, step, prompt and rollout.
    """
    for prompt, rewards_G in zip(prompts, rewards_P_G, strict=True):
        for sample, reward in enumerate(rewards_G):
            if not math.isfinite(reward):
                raise RunError(
                    f"arm {arm}: step {step}, train item {prompt}, rollout {sample}: the reward is "
                    f"{reward}, not a finite number; correct the grader, nothing was updated"
                )
