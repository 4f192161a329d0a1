"""Preflight: each arm's advantages, loss and gradient agree with an independent computation."""

from pydantic import Field

from harness.audit.correctness import (
    NOTHING_COMPARED,
    PathAgreement,
    path_metrics,
    path_problems,
    tolerances,
)
from harness.audit.finding import Finding
from harness.cards import Experiment
from harness.evidence import Evidence, Measured

OWN_REWARD = 1e-9
"""How far a leave-one-out baseline may move with its own reward: two float64 sums."""


class ComputationEvidence(Evidence):
    """The path that some arms share, against another computation of it, per pattern of rewards.

    `arms` share estimator, kernel and loss. `reference` is the other computation: a pinned file, as
    a path in the project, or the harness's own recomputation. `prompts` counts the real prompts of
    one batch, and `tau` is the temperature of a kernel that has one. `patterns` maps the name of a
    reward pattern to the comparison. `unverified` are the components of these arms that declare no
    reference, so that advantages were compared with those of the component itself. `own_reward` is
    how far a baseline moved with its own rollout's reward, of an estimator that is leave-one-out.
    """

    arms: list[str]
    reference: str
    prompts: int
    tau: float | None
    patterns: dict[str, PathAgreement]
    unverified: list[str] = Field(default_factory=list)
    own_reward: Measured | None = None

    @property
    def name(self) -> str:
        """The first arm's name, for lines and metrics."""
        return self.arms[0]


class ReferenceEvidence(Evidence):
    """Every computation that some arm trains with."""

    computations: list[ComputationEvidence]


def check(evidence: ReferenceEvidence, experiment: Experiment) -> Finding:
    """Each arm's advantages, loss and gradient within the stated tolerances, in every pattern."""
    stated = tolerances(experiment)
    problems = [] if stated else [NOTHING_COMPARED]
    compared = {arm for found in evidence.computations if found.patterns for arm in found.arms}
    problems += [
        f"arm {arm.name}: no reward pattern was compared with another computation of "
        f"{arm.estimator}; collect at least one"
        for arm in experiment.arms
        if arm.name not in compared
    ]
    problems += [
        f"arm {found.name}: a baseline moved by {found.own_reward:.3g} with its own rollout's "
        f"reward, bound {OWN_REWARD:g}; leave r_i out of b_i, or don't declare the "
        "estimator leave-one-out"
        for found in evidence.computations
        if found.own_reward is not None and not found.own_reward <= OWN_REWARD
    ]
    for id, of in stated.items():
        loss, gradient = of.get("reference_loss"), of.get("reference_gradient")
        for found in evidence.computations:
            for pattern, path in found.patterns.items():
                what = f"{id}, {found.name}, rewards {pattern}"
                problems.extend(path_problems(what, path, loss, gradient, "reference"))
    metrics = {
        f"{found.name}.{pattern}.{name}": value
        for found in evidence.computations
        for pattern, path in found.patterns.items()
        for name, value in path_metrics(path).items()
    }
    notes = tuple(map(_note, evidence.computations))
    return Finding("reference_correctness", tuple(problems), notes, metrics)


def _note(found: ComputationEvidence) -> str:
    if found.unverified:
        return (
            f"{', '.join(found.arms)}: UNVERIFIED: {' and '.join(found.unverified)} declares no "
            "reference, so advantages are compared with its own; loss and gradient with "
            f"{found.reference}"
        )
    at = "" if found.tau is None else f"tau {found.tau:g}, "
    return (
        f"{', '.join(found.arms)} against {found.reference}: {found.prompts} prompts of the train "
        f"split, {at}rewards {', '.join(found.patterns)}"
    )
