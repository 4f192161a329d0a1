"""Part of `server_loss`: the service's own clipped loss and this client's are one and the same.

Both get one batch whose behaviour log-probs lie far from the learner's, so that the clip acts on
both signs. The value is compared with the float64 reference, the gradient by how far one step
proportional to it moves the batch's log-probs.
"""

from collections.abc import Sequence

import numpy as np

from harness.audit.loss_moves import smallest_move
from harness.audit.loss_values import LossValue, value_lines
from harness.cards import Arm, Experiment
from harness.cards.registration import LossBackend
from harness.errors import ServiceError
from harness.evidence import Evidence, Measured
from harness.fingerprints import tolerance

CLIENTS: tuple[LossBackend, ...] = ("service", "custom")
MOVE_TOLERANCE = 0.02
"""Of the largest move: a step is linear in the gradient to about this."""


class BackendProbe(Evidence):
    """One loss by one client: its value, and the move of the batch's log-probs after one step.

    `refused` is what the service said if it did not take the request; the rest is then empty.
    """

    client: LossBackend
    value: LossValue
    move_T: list[Measured]
    refused: str | None


class NormProbe(Evidence):
    """Gradient norms as the optimizer step reports them, all at the same weights.

    Of one datum, of two copies of it, of another datum, of both, and of one less the other.
    """

    one: float
    two_copies: float
    other: float
    sum: float
    difference: float


def compared_arms(experiment: Experiment) -> list[Arm]:
    """One arm per loss that can be computed by either client: those that clip, or name custom."""
    found: dict[str, Arm] = {}
    for arm in experiment.arms:
        if arm.loss == "ppo" or "custom" in arm.loss_backends:
            found.setdefault(arm.loss, arm)
    return list(found.values())


def backend_lines(
    experiment: Experiment, probes: Sequence[BackendProbe], noise: float = 0.0
) -> tuple[list[str], list[str]]:
    """(problems, notes) on the clients of each loss that both could compute."""
    problems: list[str] = []
    notes: list[str] = []
    for stated in compared_arms(experiment):
        loss = stated.loss
        arms = [arm for arm in experiment.arms if arm.loss == loss]
        probed = any(probe.value.loss == loss for probe in probes)
        if not probed and all(arm.loss_backends == ("service",) for arm in arms):
            continue  # its value is compared with the reference in any case
        refused = {client: refusal(probes, loss, client) for client in CLIENTS}
        wrong = {c: [] if refused[c] else wrong_values(probes, loss, c) for c in CLIENTS}
        for client in CLIENTS:
            # a wrong loss is never passed over, only one that can't be had
            listed = any(client in arm.loss_backends for arm in arms)
            (problems if listed else notes).extend(f"{client} client: {w}" for w in wrong[client])
            notes += [f"{client} client: {line}" for line in refused[client]]
        if not any(refused.values()) and not any(wrong.values()):
            differing, agreeing = _agreement(loss, probes, noise)
            problems += differing
            notes += agreeing
        for arm in arms:
            usable = [client for client in arm.loss_backends if not refused[client]]
            if not usable:
                problems.append(
                    f"arm {arm.name}: none of its loss backends ({', '.join(arm.loss_backends)}) "
                    f"works: {refused[arm.loss_backends[0]][0]}; use another service, or register "
                    "a fallback in loss_backends"
                )
            elif usable[0] != arm.loss_backends[0]:
                notes.append(f"arm {arm.name}: falls back to {usable[0]}, as registered")
    return problems, notes


def refusal(probes: Sequence[BackendProbe], loss: str, client: LossBackend) -> list[str]:
    """Why a loss can't be had from a client: the service refused it, or nobody asked."""
    found = _probe(probes, loss, client)
    if found is None:
        return [f"loss {loss}: the {client} client was not probed; probe it"]
    if found.refused is not None:
        return [f"loss {loss}: the service refuses the {client} client ({found.refused})"]
    return []


def wrong_values(probes: Sequence[BackendProbe], loss: str, client: LossBackend) -> list[str]:
    """Where the loss that a client gave is not the float64 reference's."""
    found = _probe(probes, loss, client)
    failures, unknown = value_lines([] if found is None else [found.value], [loss])
    return [*failures, *unknown]


def chosen_backend(arm: Arm, probes: Sequence[BackendProbe]) -> LossBackend:
    """The first of the arm's loss backends that the service takes.

    Raises:
        ServiceError: it takes none.
    """
    for client in arm.loss_backends:
        if not refusal(probes, arm.loss, client):
            return client
    raise ServiceError(
        f"arm {arm.name}: none of {', '.join(arm.loss_backends)} computes {arm.loss} on this "
        "service; see the preflight server_loss"
    )


def norm_lines(probe: NormProbe | None) -> list[str]:
    """Where reported norms are not those of an accumulated gradient: it can't be probed then.

    Two copies double the norm, and a sum and a difference obey the parallelogram law.
    """
    if probe is None:
        return ["gradient norms: none was reported; drop gradient_probe or use another service"]
    squares = probe.sum**2 + probe.difference**2
    expected = 2.0 * (probe.one**2 + probe.other**2)
    problems = []
    for what, value, wanted in (
        ("norm of two copies of a datum", probe.two_copies, 2.0 * probe.one),
        ("|g+h|^2 + |g-h|^2", squares, expected),
    ):
        if not (wanted > 0.0 and abs(value - wanted) <= 1e-3 * wanted):
            problems.append(
                f"gradient norms: {what} is {value:.6g}, {wanted:.6g} expected within 0.1%; the "
                "service reports another norm, so drop gradient_probe"
            )
    return problems


def _agreement(
    loss: str, probes: Sequence[BackendProbe], noise: float
) -> tuple[list[str], list[str]]:
    service, custom = _probe(probes, loss, "service"), _probe(probes, loss, "custom")
    assert service is not None
    assert custom is not None
    moves = np.asarray(service.move_T), np.asarray(custom.move_T)
    largest = float(np.abs(moves[0]).max()) if moves[0].size else 0.0
    smallest = smallest_move(noise)
    if moves[0].shape != moves[1].shape or not largest >= smallest:
        return [
            f"loss {loss}: a step moves log-probs by {largest:.3g}, at least {smallest:.3g} "
            "needed to compare gradients; probe with a larger step"
        ], []
    apart = float(np.abs(moves[0] - moves[1]).max())
    allowed = tolerance(noise, MOVE_TOLERANCE * largest)
    if not apart <= allowed:
        return [
            f"loss {loss}: a step on the service's gradient and one on this client's move "
            f"log-probs {apart:.3g} apart, bound {allowed / largest:.0%} of {largest:.3g}; "
            "they are not the same loss"
        ], []
    a, b = service.value.reported, custom.value.reported
    return [], [
        f"loss {loss}: service {a:.8g}, this client {b:.8g}; their gradients move log-probs by up "
        f"to {largest:.3g}, at most {apart:.2g} apart"
    ]


def _probe(probes: Sequence[BackendProbe], loss: str, client: LossBackend) -> BackendProbe | None:
    return next((p for p in probes if p.client == client and p.value.loss == loss), None)
