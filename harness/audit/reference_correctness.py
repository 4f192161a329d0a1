"""Preflight: GS1 advantages, loss and gradient agree with the pinned independent reference."""

from harness.audit.correctness import PathAgreement, card_paths, path_metrics, path_problems
from harness.audit.finding import Finding
from harness.cards import Experiment
from harness.evidence import Evidence


class ReferenceEvidence(Evidence):
    """The harness's path against the reference, per pattern of rewards.

    `reference` is the reference's path in the project, `prompts` the real prompts of one batch and
    `tau` the temperature of the arm under test, None if its kernel has none. `patterns` maps the
    name of a reward pattern to the comparison. All is empty and 0 if no arm uses the kernel.
    """

    arm: str
    reference: str
    prompts: int
    tau: float | None
    patterns: dict[str, PathAgreement]


def check(evidence: ReferenceEvidence, experiment: Experiment) -> Finding:
    """Advantages, loss and gradient within the card's reference tolerances, in every pattern."""
    paths = card_paths(experiment)
    if not any(arm.estimator == "gs1" for arm in experiment.arms):
        note = "no arm uses a similarity-weighted baseline; nothing to compare"
        return Finding("reference_correctness", notes=(note,))
    problems = []
    if not evidence.patterns:
        problems.append("no reward pattern was compared; collect at least one")
    for path in paths:
        loss = path.tolerances.get("reference_loss")
        gradient = path.tolerances.get("reference_gradient")
        for pattern, found in evidence.patterns.items():
            what = f"{path.id}, rewards {pattern}"
            problems.extend(path_problems(what, found, loss, gradient, "reference"))
    at = "cosine weights" if evidence.tau is None else f"tau {evidence.tau:g}"
    notes = [
        f"{evidence.arm} against {evidence.reference}: {evidence.prompts} prompts of the train "
        f"split, {at}, rewards {', '.join(evidence.patterns)}"
    ]
    if not paths:
        notes.append("the card requires no comparison, so no tolerance was applied")
    metrics = {
        f"{pattern}.{name}": value
        for pattern, found in evidence.patterns.items()
        for name, value in path_metrics(found).items()
    }
    return Finding("reference_correctness", tuple(problems), tuple(notes), metrics)
