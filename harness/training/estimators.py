"""From graded rollouts to advantages, by the arm's registered estimator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.cards import Arm
from harness.errors import RunError
from harness.methods import advantages, kernels
from harness.training.records import KernelRecord

if TYPE_CHECKING:
    from harness.tasks.gsm8k import Problem


@dataclass(frozen=True)
class Estimate:
    """Advantages per prompt and rollout, and what the baseline was made of."""

    advantages_P_G: list[NDArray[np.float64]]
    kernel: KernelRecord | None


@dataclass(frozen=True)
class Estimator:
    """The advantage estimator of one arm. `kernel` is fitted once, on the train questions."""

    arm: Arm
    kernel: kernels.PromptKernel | None

    def weights(self, problems: Sequence[Problem]) -> NDArray[np.float64]:
        """The leave-one-out weights (P, P) of a batch of prompts."""
        if self.kernel is None or self.arm.kernel is None or self.arm.kernel.tau is None:
            return kernels.uniform_loo_weights(len(problems))
        similarity_P_P = self.kernel.similarity([problem.question for problem in problems])
        return kernels.softmax_loo_weights(similarity_P_P, self.arm.kernel.tau)

    def estimate(
        self, problems: Sequence[Problem], rewards_P_G: Sequence[Sequence[float]]
    ) -> Estimate:
        """The advantages of one step's rewards.

        Raises:
            RunError: the estimator needs one rollout a prompt and got another number.
        """
        if self.arm.estimator == "group_mean":
            return Estimate(
                [advantages.group_mean(np.asarray([rewards_G]))[0] for rewards_G in rewards_P_G],
                None,
            )
        sizes = sorted({len(rewards_G) for rewards_G in rewards_P_G})
        if sizes != [1]:
            raise RunError(
                f"arm {self.arm.name}: estimator {self.arm.estimator} takes 1 rollout a prompt, "
                f"got {sizes}; give the arm group_size 1"
            )
        rewards_P = np.asarray([rewards_G[0] for rewards_G in rewards_P_G], dtype=np.float64)
        weights_P_P = self.weights(problems)
        advantages_P = advantages.gs1(rewards_P, weights_P_P)
        return Estimate(
            [np.asarray([advantage]) for advantage in advantages_P],
            KernelRecord(
                contributors_P=kernels.effective_contributors(weights_P_P).tolist(),
                baselines_P=(rewards_P - advantages_P).tolist(),
            ),
        )


def estimator(arm: Arm, train_questions: Sequence[str]) -> Estimator:
    """The estimator of an arm, its kernel fitted on the train questions where it has one."""
    if arm.kernel is None:
        return Estimator(arm, None)
    return Estimator(arm, kernels.fit_tfidf(train_questions, arm.kernel))


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
