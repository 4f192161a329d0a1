"""Preflight: the baseline arm's path gives the stock cookbook's datums, loss and gradient."""

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

SHOWN = 3


class BaselineEvidence(Evidence):
    """The harness's datums for fixed rollouts against the stock cookbook's.

    `unequal` names each datum whose tokens, targets or behaviour log-probs differ in a single bit,
    or that is there on one side only; advantages and what follows from them are in `path`.
    """

    cookbook: str
    datums: int
    action_tokens: int
    zero_variance_groups: int
    unequal: list[str]
    path: PathAgreement


def check(evidence: BaselineEvidence, experiment: Experiment) -> Finding:
    """Equal datums, and loss and gradient within the stated baseline tolerances."""
    stated = tolerances(experiment)
    problems = [] if stated else [NOTHING_COMPARED]
    if evidence.unequal:
        shown = "; ".join(evidence.unequal[:SHOWN])
        problems.append(
            f"{len(evidence.unequal)} of {evidence.datums} datums differ from the stock "
            f"cookbook's, bound 0: {shown}; send what the cookbook assembles"
        )
    for id, of in stated.items():
        loss, gradient = of.get("baseline_loss"), of.get("baseline_gradient")
        problems.extend(path_problems(id, evidence.path, loss, gradient, "baseline"))
    notes = (
        f"compared with tinker-cookbook {evidence.cookbook}: {evidence.datums} datums, "
        f"{evidence.action_tokens} action tokens, {evidence.zero_variance_groups} groups of equal "
        "rewards; tokens, targets and behaviour log-probs bit for bit",
    )
    metrics = {"datums": float(evidence.datums), **path_metrics(evidence.path)}
    return Finding("baseline_correctness", tuple(problems), notes, metrics)
