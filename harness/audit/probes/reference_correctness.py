"""Evidence for `reference_correctness`: every arm's path against another computation of it.

A gs1 path is held against the pinned reference, any other against `harness.audit.recomputed`,
which shares no code with the estimators and losses that train.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from harness.audit import recomputed
from harness.audit.correctness import PathAgreement
from harness.audit.kernel import leave_one_out
from harness.audit.probes.correctness import SEED, one_thread, path_agreement, small_model
from harness.audit.reference_correctness import ComputationEvidence, ReferenceEvidence
from harness.cards import Arm, Experiment
from harness.errors import CardError
from harness.tasks.task import Item, Task
from harness.training.datums import step_data
from harness.training.estimators import Estimator, estimator
from harness.training.streams import data_order

ROLLOUTS = 64

Rows = Sequence[Sequence[float]]


class Reference(Protocol):
    """What the pinned reference file offers; see its own words."""

    def advantages(
        self,
        rewards: Sequence[float],
        train_questions: Sequence[str],
        questions: Sequence[str],
        *tau: float,
    ) -> list[float]:
        """GS1 advantages (P,); tau is given if the kernel has one."""
        ...

    def loss(
        self,
        logprobs: Sequence[Sequence[float]],
        behaviour: Sequence[Sequence[float]],
        advantages: Sequence[float],
    ) -> float:
        """The loss over the action tokens of all rollouts."""
        ...

    def loss_gradient(
        self,
        logprobs: Sequence[Sequence[float]],
        behaviour: Sequence[Sequence[float]],
        advantages: Sequence[float],
    ) -> list[list[float]]:
        """The loss's derivative by every log-prob."""
        ...


@dataclass(frozen=True)
class Other:
    """Another computation of a path.

    `advantages` are of rewards (P, G), `loss` and `gradient` of the learner's log-probs, the
    behaviour policy's and one advantage a rollout.
    """

    name: str
    advantages: Callable[[Rows], Rows]
    loss: Callable[[Rows, Rows, Sequence[float]], float]
    gradient: Callable[[Rows, Rows, Sequence[float]], Rows]


@one_thread()
def collect(experiment: Experiment, task: Task, cards_dir: Path) -> ReferenceEvidence:
    """Every computation that arms train with, on real prompts and several rewards.

    Raises:
        CardError: no reference is pinned for gs1, or its file does not define what is compared.
    """
    return ReferenceEvidence(
        computations=[
            _compared(experiment, arms, task, cards_dir) for arms in alike(experiment.arms)
        ]
    )


def alike(arms: Sequence[Arm]) -> list[list[Arm]]:
    """The arms by what computes them: estimator, kernel and loss, with their settings."""
    found: dict[str, list[Arm]] = {}
    for arm in arms:
        settings = (sorted(arm.estimator_config.items()), sorted(arm.loss_config.items()))
        found.setdefault(repr((arm.estimator, arm.kernel, arm.loss, settings)), []).append(arm)
    return list(found.values())


def _compared(
    experiment: Experiment, arms: Sequence[Arm], task: Task, cards_dir: Path
) -> ComputationEvidence:
    from harness.audit.probes.fixed_rollouts import REWARDS, patterns

    arm = arms[0]
    questions = [item.question for item in task.train]
    order = data_order(experiment.registration.training.data_order_seed, len(task.train))
    items = [task.train[index] for index in order[: max(2, ROLLOUTS // arm.group_size)]]
    if arm.estimator == "gs1":
        other = _pinned(experiment, arm, questions, items, cards_dir)
    else:
        other = _recomputed(arm)
    fitted = estimator(arm, questions)
    values = (0.0, 1.0) if arm.estimator == "maxrl" else REWARDS
    return ComputationEvidence(
        arms=[each.name for each in arms],
        reference=other.name,
        prompts=len(items),
        tau=None if arm.kernel is None else arm.kernel.tau,
        patterns={
            pattern: _agreement(fitted, other, items, rewards_P_G)
            for pattern, rewards_P_G in patterns(len(items), arm.group_size, SEED, values).items()
        },
    )


def _pinned(
    experiment: Experiment,
    arm: Arm,
    questions: Sequence[str],
    items: Sequence[Item],
    cards_dir: Path,
) -> Other:
    """The pinned reference of gs1; its loss is importance sampling, any other is recomputed."""
    name = next(iter(experiment.registration.pins.references), None)
    if name is None:
        raise CardError("pins.references is empty, a gs1 arm needs one reference; pin it")
    reference = load_reference(cards_dir.resolve().parents[1] / name)
    tau = [] if arm.kernel is None or arm.kernel.tau is None else [arm.kernel.tau]

    def advantages(rewards_P_G: Rows) -> Rows:
        rewards_P = [rewards_G[0] for rewards_G in rewards_P_G]
        drawn = [item.question for item in items]
        return [[a] for a in reference.advantages(rewards_P, questions, drawn, *tau)]

    if arm.loss == "importance_sampling":
        return Other(name, advantages, reference.loss, reference.loss_gradient)
    other = _recomputed(arm)
    return Other(name, advantages, other.loss, other.gradient)


def _recomputed(arm: Arm) -> Other:
    """Term by term as the sources write it, in plain Python."""

    def advantages(rewards_P_G: Rows) -> Rows:
        if arm.estimator in recomputed.GROUP_ESTIMATORS:
            return [recomputed.group_advantages(arm, rewards_G) for rewards_G in rewards_P_G]
        rewards_P = [rewards_G[0] for rewards_G in rewards_P_G]
        baselines_P = leave_one_out(None, [], rewards_P)
        return [[reward - b] for reward, b in zip(rewards_P, baselines_P, strict=True)]

    def tokens(learner: Rows, behaviour: Rows, advantages: Sequence[float]) -> _Tokens:
        rows = zip(learner, behaviour, advantages, strict=True)
        return [
            [recomputed.Token(q, p, recomputed.float32(a), 0.0, (), 0, 0) for p, q in pairs]
            for pairs, a in ((zip(p_T, q_T, strict=True), a) for p_T, q_T, a in rows)
        ]

    return Other(
        "harness.audit.recomputed",
        advantages,
        lambda *rows: recomputed.loss_value(arm, [t for row in tokens(*rows) for t in row]),
        lambda *rows: [recomputed.loss_gradient(arm, row) for row in tokens(*rows)],
    )


_Tokens = list[list[recomputed.Token]]


def load_reference(path: Path) -> Reference:
    """The reference as a module of its own, loaded from its file.

    Raises:
        CardError: there is no such file, or it lacks a function.
    """
    spec = importlib.util.spec_from_file_location(f"pinned_reference_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CardError(f"reference {path.name}: no such file at {path}; restore it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wanted = ("advantages", "loss", "loss_gradient")
    missing = [function for function in wanted if not callable(getattr(module, function, None))]
    if missing:
        raise CardError(f"reference {path.name}: lacks {', '.join(missing)}; define them")
    return cast(Reference, module)


def _agreement(
    fitted: Estimator, other: Other, items: Sequence[Item], rewards_P_G: Rows
) -> PathAgreement:
    from harness.audit.probes.fixed_rollouts import fixed_groups
    from harness.audit.probes.small_model import datum_logprobs

    model = small_model()
    groups = fixed_groups(rewards_P_G, model, SEED)
    ours = step_data(groups, fitted.estimate(items, rewards_P_G).advantages_P_G)

    expected_D = [a for advantages_G in other.advantages(rewards_P_G) for a in advantages_G]
    # the other computation knows action tokens only, and the log-probs as they were recorded
    actions = [t.transitions[0].ac for group in groups for t in group.trajectories_G]
    lengths = [len(datum.loss_fn_inputs["target_tokens"].tolist()) for datum in ours]
    values = np.split(datum_logprobs(model, ours).detach().numpy(), np.cumsum(lengths)[:-1])
    learner = [
        row[-len(action.tokens) :].tolist() for row, action in zip(values, actions, strict=True)
    ]
    behaviour = [action.logprobs for action in actions]
    gradient = other.gradient(learner, behaviour, expected_D)
    advantages = [[a] * len(ac.tokens) for a, ac in zip(expected_D, actions, strict=True)]
    return path_agreement(
        fitted.arm,
        ours,
        np.concatenate(_after_prompt(lengths, advantages)),
        other.loss(learner, behaviour, expected_D),
        np.concatenate(_after_prompt(lengths, gradient)),
    )


def _after_prompt(lengths: Sequence[int], rows: Rows) -> list[list[float]]:
    """Values of action tokens as values of all targets: 0 where nothing was sampled."""
    return [[0.0] * (n - len(row)) + list(row) for n, row in zip(lengths, rows, strict=True)]
