"""From graded rollouts to advantages, by the arm's registered estimator."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from harness import components
from harness.cards import Arm
from harness.components import StepRewards
from harness.components.kernel import WeightsOf
from harness.errors import RunError
from harness.methods import kernels
from harness.records import KernelRecord
from harness.tasks.task import Item


@dataclass(frozen=True)
class Estimate:
    """Advantages per prompt and rollout, what baselines were made of, the next step's state."""

    advantages_P_G: list[NDArray[np.float64]]
    kernel: KernelRecord | None
    state: JsonValue = None


@dataclass(frozen=True)
class Estimator:
    """The advantage estimator of one arm.

    `weights` gives the leave-one-out weights (P, P) of a batch of questions; an estimator that
    takes no kernel has none.
    """

    arm: Arm
    weights: WeightsOf | None

    def estimate(
        self,
        problems: Sequence[Item],
        rewards_P_G: Sequence[Sequence[float]],
        step: int = 0,
        state: JsonValue = None,
    ) -> Estimate:
        """The advantages of one step's rewards.

        Args:
            problems: the P prompts of the step.
            rewards_P_G: their rollouts' rewards.
            step: its number, counted from 0.
            state: what the estimator returned for the step before.

        Raises:
            RunError: groups have a size that the estimator does not take, or what it returned can't
                be used.
        """
        declared, questions_P = self.arm.declared, [problem.question for problem in problems]
        self._refuse_sizes(rewards_P_G)
        weights_P_P = None if self.weights is None else self.weights(questions_P)
        given = StepRewards(step, questions_P, rewards_P_G, state, weights_P_P)
        found = declared(given, self.arm.settings)
        where = f"arm {self.arm.name}: step {step}: estimator {declared.name}"
        advantages_P_G = _whole(where, found, rewards_P_G)
        kernel = None
        if weights_P_P is not None:
            baselines_P = found.baselines_P
            if baselines_P is None:  # one rollout a prompt: the reward less its advantage
                baselines_P = [
                    r[0] - a[0] for r, a in zip(rewards_P_G, advantages_P_G, strict=True)
                ]
            kernel = KernelRecord(
                contributors_P=kernels.effective_contributors(weights_P_P).tolist(),
                baselines_P=list(baselines_P),
            )
        return Estimate(advantages_P_G, kernel, _plain(where, found.state))

    def _refuse_sizes(self, rewards_P_G: Sequence[Sequence[float]]) -> None:
        sizes, declared = sorted({len(rewards_G) for rewards_G in rewards_P_G}), self.arm.declared
        most = declared.max_group_size
        if most is not None and sizes and sizes[-1] > most:
            raise RunError(
                f"arm {self.arm.name}: estimator {self.arm.estimator} takes {most} rollout a "
                f"prompt, got {sizes}; give the arm group_size {most}"
            )


def estimator(arm: Arm, train_questions: Sequence[str]) -> Estimator:
    """The estimator of an arm; its kernel is fitted once, on the train questions.

    Raises:
        CardError: nothing declares the arm's estimator or kernel.
        RunError: its settings are not those that it declares, or it lacks its kernel.
    """
    declared = arm.declared
    if lines := components.settings_problems(declared.settings, arm.estimator_config):
        raise RunError(f"arm {arm.name}: estimator {declared.name}: {'; '.join(lines)}")
    if declared.kernel == "none":
        return Estimator(arm, None)
    if declared.kernel == "uniform":
        return Estimator(arm, lambda questions: kernels.uniform_loo_weights(len(questions)))
    registered = arm.declared_kernel
    if registered is None:
        raise RunError(
            f"arm {arm.name}: estimator {arm.estimator!r} takes a kernel and the arm has none; "
            "register one"
        )
    kernel, settings = registered
    return Estimator(arm, kernel.fit(train_questions, settings))


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


def _whole(
    where: str, found: components.Estimate, rewards_P_G: Sequence[Sequence[float]]
) -> list[NDArray[np.float64]]:
    """One finite advantage for each reward, as arrays of one group each."""
    rows = [np.asarray(row, dtype=np.float64) for row in found.advantages_P_G]
    shapes, wanted = [row.shape for row in rows], [(len(row),) for row in rewards_P_G]
    if shapes != wanted:
        raise RunError(
            f"{where} returned advantages of the shapes {shapes} for rewards of {wanted}; return "
            "one for each reward"
        )
    for place, row in enumerate(rows):
        if not np.isfinite(row).all():
            raise RunError(
                f"{where} returned {row.tolist()} for prompt {place} with the rewards "
                f"{list(rewards_P_G[place])}; return finite numbers"
            )
    return rows


def _plain(where: str, state: JsonValue) -> JsonValue:
    """The state as its stored form gives it back, so that a resumed arm sees what this one sees."""
    try:
        plain: JsonValue = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RunError(
            f"{where} returned a state that can't be stored ({error}); return numbers, texts, "
            "lists and dicts with finite values"
        ) from None
    return plain
