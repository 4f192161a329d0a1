"""Preflight: the service's loss is the token sum that the card assumes.

Two kinds of evidence. The value: `loss:sum` as returned, against the loss computed in float64 from
the log-probs that came with it. The aggregation: with Adam's eps far above every gradient, one
step moves the weights by (learning rate / eps) times the gradient, so log-probs move in proportion
to it. What the move does when a datum is doubled, lengthened or cut in two tells a sum from every
normalisation.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue

from harness.audit.acceptance import settle
from harness.audit.finding import Finding
from harness.audit.loss_backends import BackendProbe, NormProbe, backend_lines, norm_lines
from harness.audit.loss_moves import largest, move_lines, move_ratios
from harness.audit.loss_values import LossValue, value_lines
from harness.cards import Experiment
from harness.evidence import Evidence, Measured

Outcome = Literal["holds", "fails", "unverifiable"]


class LossEvidence(Evidence):
    """Loss values, and the move of one datum's log-probs (T) after one step of each probe.

    `moves_T` has `one` and the probes of `loss_moves.EXPECTED`. `step_size` is learning rate / eps.
    `noise` is how far apart the service reads the same weights, as far as it is left in the moves.
    `clients` compares who computes the loss, where an arm leaves a choice; `norms` are there if the
    registration measures gradients.
    """

    values: list[LossValue]
    moves_T: dict[str, list[Measured]]
    step_size: float
    noise: Measured = 0.0
    clients: list[BackendProbe] = Field(default_factory=list)
    norms: NormProbe | None = None


def check(evidence: LossEvidence, experiment: Experiment) -> Finding:
    """Whether the service sums: holds, fails, or can't be verified."""
    ratios = move_ratios(evidence.moves_T)
    # of a loss that the service refuses the clients have more to say
    refused = [probe.value.loss for probe in evidence.clients if probe.refused is not None]
    valued = [value.loss for value in evidence.values]
    losses = [x for x in losses_of(experiment) if x in valued or x not in refused]
    value_failures, value_unknown = value_lines(evidence.values, losses)
    move_failures, move_unknown = move_lines(evidence.moves_T, ratios, evidence.noise)
    unknown = [*value_unknown, *move_unknown]
    given_for: dict[str, JsonValue] = {"losses": [*sorted(losses)]}
    settled = settle(experiment, "server_loss", "unverifiable", unknown, given_for)
    client_problems, client_notes = backend_lines(experiment, evidence.clients, evidence.noise)
    failures = [*value_failures, *move_failures, *client_problems]
    if experiment.registration.gradient_probe is not None:
        failures += norm_lines(evidence.norms)
    outcome = outcome_of(failures, unknown)
    notes = [f"outcome: {outcome}", *settled.notes, *client_notes]
    if ratios:
        shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
        notes.append(f"move of log-probs relative to one datum: {shown}")
    metrics = {f"move_ratio.{name}": ratio for name, ratio in ratios.items()}
    metrics["largest_move"] = largest(evidence.moves_T.get("one", []))
    metrics["step_size"] = evidence.step_size
    if evidence.noise:
        metrics["noise"] = evidence.noise
    for value in evidence.values:
        if value.reported is not None:
            metrics[f"{value.loss}.reported"] = value.reported
    return Finding("server_loss", (*failures, *settled.problems), tuple(notes), metrics)


def losses_of(experiment: Experiment) -> tuple[str, ...]:
    """The losses that the arms train with, each once."""
    return tuple(dict.fromkeys(arm.loss for arm in experiment.arms))


def outcome_of(failures: Sequence[str], unknown: Sequence[str]) -> Outcome:
    """`fails` outweighs `unverifiable`, which outweighs `holds`."""
    if failures:
        return "fails"
    return "unverifiable" if unknown else "holds"
