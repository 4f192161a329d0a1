"""Evidence for `reference_correctness`: every arm's path against another computation of it.

An estimator that is pinned is held against the reference file of the registration, any other
against the reference that it declares; losses against `harness.audit.recomputed`, which shares no
code with those that train.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from pydantic import JsonValue

from harness.audit import recomputed
from harness.audit.advantages import reference_weights
from harness.audit.correctness import PathAgreement
from harness.audit.probes.correctness import SEED, one_thread, path_agreement, small_model
from harness.audit.probes.pins import project_of
from harness.audit.reference_correctness import ComputationEvidence, ReferenceEvidence
from harness.cards import Arm, Experiment
from harness.components import StepRewards
from harness.errors import CardError
from harness.tasks.task import Item, Task
from harness.training.datums import step_data
from harness.training.estimators import Estimator, estimator
from harness.training.streams import data_order

ROLLOUTS = 64

MOVED = 8
"""Rollouts whose rewards are changed, to see whether their own baselines move."""

BINARY = (0.0, 1.0)

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
        """Advantages (P,) of one rollout each; tau is given if the kernel has one."""
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

    `advantages` are of rewards (P, G) and the estimator's state before, `loss` and `gradient` of
    the learner's log-probs, the behaviour policy's and one advantage a rollout.
    """

    name: str
    advantages: Callable[[Rows, JsonValue], Rows]
    loss: Callable[[Rows, Rows, Sequence[float]], float]
    gradient: Callable[[Rows, Rows, Sequence[float]], Rows]


@one_thread()
def collect(experiment: Experiment, task: Task, cards_dir: Path) -> ReferenceEvidence:
    """Every computation that arms train with, on real prompts and several rewards.

    Raises:
        CardError: no reference is pinned for an estimator that needs one, or its file does not
            define what is compared.
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
    if arm.declared.pinned:
        other = _pinned(experiment, arm, questions, items, cards_dir)
    else:
        other = _recomputed(arm, questions, items)
    fitted = estimator(arm, questions)
    values = BINARY if arm.declared.binary_rewards else REWARDS
    made = patterns(len(items), arm.group_size, SEED, values)
    return ComputationEvidence(
        arms=[each.name for each in arms],
        reference=other.name,
        prompts=len(items),
        tau=None if arm.tfidf is None else arm.tfidf.tau,
        patterns=_agreements(fitted, other, items, made),
        unverified=list(arm.unverified),
        own_reward=own_reward(fitted, items, made["random"]),
    )


def _pinned(
    experiment: Experiment,
    arm: Arm,
    questions: Sequence[str],
    items: Sequence[Item],
    cards_dir: Path,
) -> Other:
    """The pinned reference; its loss is importance sampling, any other is recomputed."""
    name = next(iter(experiment.registration.pins.references), None)
    if name is None:
        raise CardError(
            f"pins.references is empty, estimator {arm.estimator} needs one reference; pin it"
        )
    reference = load_reference(project_of(cards_dir) / name)
    tau = [] if arm.tfidf is None or arm.tfidf.tau is None else [arm.tfidf.tau]

    def advantages(rewards_P_G: Rows, _: JsonValue) -> Rows:
        rewards_P = [rewards_G[0] for rewards_G in rewards_P_G]
        drawn = [item.question for item in items]
        return [[a] for a in reference.advantages(rewards_P, questions, drawn, *tau)]

    if arm.loss == "importance_sampling":
        return Other(name, advantages, reference.loss, reference.loss_gradient)
    other = _recomputed(arm, questions, items)
    return Other(name, advantages, other.loss, other.gradient)


def _recomputed(arm: Arm, questions: Sequence[str], items: Sequence[Item]) -> Other:
    """By the estimator's reference, or by itself where it declares none; the loss term by term."""
    compute, drawn = arm.declared.reference or arm.declared.function, [i.question for i in items]
    weights = reference_weights(arm, questions)

    def advantages(rewards_P_G: Rows, state: JsonValue) -> Rows:
        weights_P_P = None if weights is None else weights(drawn)
        given = StepRewards(0, drawn, rewards_P_G, state, weights_P_P)
        return [[float(a) for a in row] for row in compute(given, arm.settings).advantages_P_G]

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


def own_reward(fitted: Estimator, items: Sequence[Item], rewards_P_G: Rows) -> float | None:
    """The most that the baseline r - A of some rollouts moves with their own rewards.

    None for an estimator that is not declared leave-one-out.
    """
    if not fitted.arm.declared.leave_one_out:
        return None
    plain = fitted.estimate(items, rewards_P_G).advantages_P_G
    moves = [0.0]
    for place in range(0, len(rewards_P_G), max(1, len(rewards_P_G) // MOVED)):
        changed = [list(rewards_G) for rewards_G in rewards_P_G]
        changed[place][0] = 1.0 - changed[place][0]
        moved = fitted.estimate(items, changed).advantages_P_G
        before = rewards_P_G[place][0] - plain[place][0]
        moves.append(abs(changed[place][0] - moved[place][0] - before))
    return float(np.max(moves))


def _agreements(
    fitted: Estimator, other: Other, items: Sequence[Item], made: Mapping[str, Rows]
) -> dict[str, PathAgreement]:
    """One after the other, so that an estimator with a state has one to go on from."""
    found, state = {}, None
    for pattern, rewards_P_G in made.items():
        found[pattern] = _agreement(fitted, other, items, rewards_P_G, state)
        state = fitted.estimate(items, rewards_P_G, 0, state).state
    return found


def _agreement(
    fitted: Estimator, other: Other, items: Sequence[Item], rewards_P_G: Rows, state: JsonValue
) -> PathAgreement:
    from harness.audit.probes.fixed_rollouts import fixed_groups
    from harness.audit.probes.small_model import datum_logprobs

    model = small_model()
    groups = fixed_groups(rewards_P_G, model, SEED)
    ours = step_data(groups, fitted.estimate(items, rewards_P_G, 0, state).advantages_P_G)

    rows = other.advantages(rewards_P_G, state)
    expected_D = [float(a) for advantages_G in rows for a in advantages_G]
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
