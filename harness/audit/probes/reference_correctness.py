"""Evidence for `reference_correctness`: the GS1 path against the pinned independent reference."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from harness.audit.correctness import PathAgreement
from harness.audit.probes.correctness import SEED, path_agreement, small_model
from harness.audit.reference_correctness import ReferenceEvidence
from harness.cards import Experiment
from harness.errors import CardError
from harness.tasks.task import Item, Task
from harness.training.datums import step_data
from harness.training.estimators import Estimator, estimator
from harness.training.streams import data_order

PROMPTS = 64


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


def collect(experiment: Experiment, task: Task, cards_dir: Path) -> ReferenceEvidence:
    """The GS1 arm's path and the pinned reference's, on real prompts and several rewards.

    Raises:
        CardError: no reference is pinned, or its file does not define what is compared.
    """
    from harness.audit.probes.fixed_rollouts import patterns

    arm = next((arm for arm in experiment.arms if arm.estimator == "gs1"), None)
    if arm is None or arm.kernel is None:
        return ReferenceEvidence(arm="", reference="", prompts=0, tau=0.0, patterns={})
    name = next(iter(experiment.registration.pins.references), None)
    if name is None:
        raise CardError("pins.references is empty, a gs1 arm needs one reference; pin it")
    reference = load_reference(cards_dir.resolve().parents[1] / name)
    questions, tau = [problem.question for problem in task.train], arm.kernel.tau
    fitted = estimator(arm, questions)
    order = data_order(experiment.registration.training.data_order_seed, len(task.train))
    problems = [task.train[index] for index in order[:PROMPTS]]
    return ReferenceEvidence(
        arm=arm.name,
        reference=name,
        prompts=len(problems),
        tau=tau,
        patterns={
            pattern: _against_reference(fitted, reference, questions, problems, rewards, tau)
            for pattern, rewards in patterns(len(problems), SEED).items()
        },
    )


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


def _against_reference(
    fitted: Estimator,
    reference: Reference,
    questions: Sequence[str],
    problems: Sequence[Item],
    rewards_P: Sequence[float],
    tau: float | None,
) -> PathAgreement:
    from harness.audit.probes.fixed_rollouts import fixed_groups
    from harness.audit.probes.small_model import datum_logprobs

    model = small_model()
    groups = fixed_groups([[reward] for reward in rewards_P], model, SEED)
    estimate = fitted.estimate(problems, [[reward] for reward in rewards_P])
    ours = step_data(groups, estimate.advantages_P_G)

    expected_P = reference.advantages(
        list(rewards_P),
        questions,
        [problem.question for problem in problems],
        *([] if tau is None else [tau]),
    )
    # the reference knows action tokens only, and the log-probs as they were recorded
    actions = [group.trajectories_G[0].transitions[0].ac for group in groups]
    lengths = [len(datum.loss_fn_inputs["target_tokens"].tolist()) for datum in ours]
    values = np.split(datum_logprobs(model, ours).detach().numpy(), np.cumsum(lengths)[:-1])
    logprobs = [
        row[-len(action.tokens) :].tolist() for row, action in zip(values, actions, strict=True)
    ]
    behaviour = [action.logprobs for action in actions]
    gradient = [
        [0.0] * (length - len(row)) + row
        for length, row in zip(
            lengths, reference.loss_gradient(logprobs, behaviour, expected_P), strict=True
        )
    ]
    advantages = [
        [0.0] * (length - len(action.tokens)) + [advantage] * len(action.tokens)
        for length, action, advantage in zip(lengths, actions, expected_P, strict=True)
    ]
    return path_agreement(
        fitted.arm,
        ours,
        np.concatenate(advantages),
        reference.loss(logprobs, behaviour, expected_P),
        np.concatenate(gradient),
    )
