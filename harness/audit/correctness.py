"""What both correctness preflights share: losses and gradients against another computation."""

from collections.abc import Mapping

from harness.audit.agreement import Agreement, agreement_problems
from harness.cards import Experiment
from harness.cards.card import Tolerance
from harness.evidence import Evidence

NOTHING_COMPARED = (
    "nothing was compared: neither card nor registration has tolerances; state "
    "correctness_tolerances in the registration"
)


class PathAgreement(Evidence):
    """One computation, from rewards to gradient, against another.

    The gradients are those of the loss with respect to the learner's log-probs and to the
    parameters of a small float64 model.
    """

    advantages: Agreement
    loss: Agreement
    logprob_gradient: Agreement
    parameter_gradient: Agreement


def path_problems(
    what: str, path: PathAgreement, loss: Tolerance | None, gradient: Tolerance | None, prefix: str
) -> list[str]:
    """Where a path differs by more than `<prefix>_loss` and `<prefix>_gradient` allow.

    Advantages are held to the tolerance of the loss, which is linear in them.
    """
    return [
        *agreement_problems(f"{what}: advantages", path.advantages, loss, f"{prefix}_loss"),
        *agreement_problems(f"{what}: loss", path.loss, loss, f"{prefix}_loss"),
        *agreement_problems(
            f"{what}: gradient by log-probs", path.logprob_gradient, gradient, f"{prefix}_gradient"
        ),
        *agreement_problems(
            f"{what}: gradient by parameters",
            path.parameter_gradient,
            gradient,
            f"{prefix}_gradient",
        ),
    ]


def path_metrics(path: PathAgreement) -> dict[str, float]:
    """The measured differences, and cosines where there is a direction, by name."""
    parts = {
        "advantages": path.advantages,
        "loss": path.loss,
        "logprob_gradient": path.logprob_gradient,
        "parameter_gradient": path.parameter_gradient,
    }
    metrics = {f"{name}_max_abs_difference": part.largest for name, part in parts.items()}
    for name in ("logprob_gradient", "parameter_gradient"):
        if parts[name].cosine != 0.0:
            metrics[f"{name}_cosine"] = parts[name].cosine
    return metrics


def tolerances(experiment: Experiment) -> Mapping[str, Mapping[str, Tolerance]]:
    """Tolerances by name for each computation that is compared: the card's, else the registered."""
    stated = experiment.card.correctness_preflight
    if stated is not None and stated.required and stated.paths:
        return {path.id: path.tolerances for path in stated.paths}
    registered = experiment.registration.correctness_tolerances
    by_name: dict[str, Tolerance] = dict(registered.items())
    return {"registered tolerances": by_name} if registered else {}
