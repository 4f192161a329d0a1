"""Preflight: each arm's advantages, loss and gradient agree with an independent computation."""

from harness.audit.correctness import (
    NOTHING_COMPARED,
    PathAgreement,
    path_metrics,
    path_problems,
    tolerances,
)
from harness.audit.finding import Finding
from harness.cards import Experiment
from harness.evidence import Evidence


class ComputationEvidence(Evidence):
    """The path that some arms share, against another computation of it, per pattern of rewards.

    `arms` share estimator, kernel and loss. `reference` is the other computation: a pinned file, as
    a path in the project, or the harness's own recomputation. `prompts` counts the real prompts of
    one batch, and `tau` is the temperature of a kernel that has one. `patterns` maps the name of a
    reward pattern to the comparison.
    """

    arms: list[str]
    reference: str
    prompts: int
    tau: float | None
    patterns: dict[str, PathAgreement]

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
    at = "" if found.tau is None else f"tau {found.tau:g}, "
    return (
        f"{', '.join(found.arms)} against {found.reference}: {found.prompts} prompts of the train "
        f"split, {at}rewards {', '.join(found.patterns)}"
    )
