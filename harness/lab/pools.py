"""Pools of rollouts: N prompts with K rollouts each, simulated on real texts or saved by a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.cards import Arm, Experiment
from harness.errors import DataError
from harness.methods.arrays import FloatArray
from harness.records import GroupRecord, StepRecord, rewards_of, tokens_of
from harness.training.streams import stream_seed

if TYPE_CHECKING:
    from harness.tasks.gsm8k import Problem


class NothingStored(DataError):
    """The run store holds no complete run of the arm that was asked for."""


@dataclass(frozen=True)
class Pool:
    """N prompts with K rollouts each.

    `tokens_N_K` counts action tokens, the proxy of |s|^2 that saved rollouts allow; None if there
    are none. `about` says where the pool comes from and what that means for it.
    """

    name: str
    about: str
    questions: tuple[str, ...]
    rewards_N_K: FloatArray
    tokens_N_K: FloatArray | None

    def part(self, indices: Sequence[int]) -> Pool:
        """The same pool with these prompts only."""
        chosen = list(indices)
        tokens = None if self.tokens_N_K is None else self.tokens_N_K[chosen]
        questions = tuple(self.questions[index] for index in chosen)
        return Pool(self.name, self.about, questions, self.rewards_N_K[chosen], tokens)


@dataclass(frozen=True)
class Difficulty:
    """How a prompt's success rate follows from its worked solution.

    logit mu = intercept - slope z + noise e, with z the standardised number of calculations in the
    solution and e standard normal. `slope` 0 makes difficulty independent of the problem.
    """

    name: str
    intercept: float
    slope: float
    noise: float


MODELS = (
    Difficulty("by_steps", intercept=0.0, slope=1.5, noise=1.0),
    Difficulty("unrelated", intercept=0.0, slope=0.0, noise=1.8),
)
"""Of about the same spread; in the first a part of it is the problem's own, in the second none."""


def simulated_pool(
    problems: Sequence[Problem], model: Difficulty, prompts: int, rollouts: int, seed: int
) -> Pool:
    """Rewards of 0 or 1 on real texts: N distinct prompts, K independent rollouts of each.

    Raises:
        DataError: fewer problems than prompts.
    """
    if len(problems) < prompts:
        raise DataError(f"{len(problems)} problems, {prompts} prompts asked for; give more")
    rng = np.random.default_rng(stream_seed(seed, "pool", model.name))
    chosen = [problems[i] for i in rng.choice(len(problems), prompts, replace=False)]
    steps_N = np.array([float(calculations(problem.solution)) for problem in chosen])
    z_N = (steps_N - steps_N.mean()) / max(float(steps_N.std()), 1e-12)
    logits_N = model.intercept - model.slope * z_N + model.noise * rng.standard_normal(prompts)
    mu_N = 1.0 / (1.0 + np.exp(-logits_N))
    rewards_N_K = (rng.random((prompts, rollouts)) < mu_N[:, np.newaxis]).astype(np.float64)
    about = (
        f"{prompts} prompts x {rollouts} simulated rollouts; logit of the success rate = "
        f"{model.intercept:g} - {model.slope:g} x standardised calculations in the solution + "
        f"{model.noise:g} x normal noise"
    )
    return Pool(model.name, about, tuple(p.question for p in chosen), rewards_N_K, None)


def calculations(solution: str) -> int:
    """How many calculations a worked solution annotates, else how many lines it has."""
    return solution.count("<<") or solution.count("\n")


def saved_pools(
    experiment: Experiment, arm: Arm, records: Sequence[StepRecord], questions: Sequence[str]
) -> list[Pool]:
    """The start, middle and end of a grouped arm's training as three pools.

    A pool joins the steps of a window, each with weights of its own: an approximation to the one
    frozen policy of the definition, which a window of the run can't avoid.

    Raises:
        DataError: the arm samples one rollout a prompt, which identifies no V*.
    """
    if arm.group_size < 2:
        raise DataError(f"arm {arm.name}: 1 rollout a prompt, V* needs 2; use a grouped arm")
    window = max(1, len(records) // 4)
    middle = (len(records) - window) // 2
    pools = []
    for name, first in (("start", 0), ("middle", middle), ("end", len(records) - window)):
        # of a prompt that is drawn again only the first group counts: the prompt is the unit
        groups: dict[int, GroupRecord] = {}
        for record in records[first : first + window]:
            for group in record["groups"]:
                groups.setdefault(group["prompt"], group)
        about = (
            f"{arm.name} of {experiment.id} at scale {experiment.scale.name}, steps {first} to "
            f"{first + window - 1}: {len(groups)} prompts x {arm.group_size} rollouts; {window} "
            "policies of consecutive updates, not one frozen policy"
        )
        rewards = [rewards_of(group) for group in groups.values()]
        tokens = [
            [float(len(tokens_of(rollout))) for rollout in group["rollouts"]]
            for group in groups.values()
        ]
        texts = tuple(questions[prompt] for prompt in groups)
        pools.append(Pool(name, about, texts, np.array(rewards), np.array(tokens)))
    return pools


def stored_records(experiment: Experiment, arm: Arm, runs_dir: Path) -> list[StepRecord]:
    """The steps of an arm that the embedded engine has trained to its end, from the run store.

    Raises:
        NothingStored: the store holds no complete run of that arm.
    """
    from harness.store import RunStore
    from harness.training.identity import arm_parts, service_identity

    parts = arm_parts(experiment, arm, service_identity(experiment, None))
    entry = RunStore(runs_dir).entry(f"arm/{arm.name}", parts)
    steps: list[StepRecord | None] = [entry.read_step(step) for step in range(arm.steps)]
    records = [step for step in steps if step is not None]
    if not entry.is_complete or len(records) < arm.steps:
        raise NothingStored(
            f"{runs_dir}: {len(records)} of {arm.steps} steps of {arm.name} are stored; run the "
            f"experiment of {experiment.id} at scale {experiment.scale.name} first"
        )
    return records
