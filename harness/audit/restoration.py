"""Preflight: arms that must start equal do, before and after one identical throw-away step.

LoRA's B starts at zero, so fresh clients agree whatever their A is. The step makes A show.
"""

import numpy as np
from pydantic import Field

from harness.audit.finding import Finding
from harness.cards import Experiment
from harness.cards.card import RestorationArm, RestorationGroup
from harness.evidence import Evidence, Measured
from harness.fingerprints import CLEARANCE, noise_floor, service_tolerance

NOTHING_COMPARED = (
    "nothing was compared: neither card nor registration says which arms must start equal; state "
    "the groups in restoration of the registration"
)


class ClientState(Evidence):
    """A fresh client of one arm, and what one throw-away step did to it.

    `sent` is what was sent at creation and with the step, in the card's own keys. Log-probs are
    over all target tokens of the fixed batch (T). `reported_rank` is None if the service does not
    report it. `again` has further readings before the step, of this client and of others that were
    created for the same arm: whatever differs there is the service's floor.
    """

    arm: str
    sent: dict[str, float]
    reported_rank: int | None
    before_T: list[Measured]
    after_T: list[Measured]
    again: list[list[Measured]] = Field(default_factory=list)


class RestorationEvidence(Evidence):
    """The groups of arms that must start equal, in the order of `equal_starts`.

    `exact` says that the service promises to repeat itself bit for bit.
    """

    groups: list[list[ClientState]]
    exact: bool = False


def check(evidence: RestorationEvidence, experiment: Experiment) -> Finding:
    """Equal starts, the registered optimizer as sent, and equal effects of an equal step."""
    stated = equal_starts(experiment)
    clients = [client for group in evidence.groups for client in group]
    apart = noise_floor((client.before_T, row) for client in clients for row in client.again)
    bound = service_tolerance(apart, exact=evidence.exact)
    problems = [] if stated else [NOTHING_COMPARED]
    metrics: dict[str, float] = {"floor": apart}
    if len(evidence.groups) != len(stated):
        problems.append(
            f"{len(evidence.groups)} groups of arms were probed, {len(stated)} are stated; "
            "probe each"
        )
    for number, (clients, group) in enumerate(zip(evidence.groups, stated, strict=False)):
        by_name = {client.arm: client for client in clients}
        for arm in group.arms:
            problems.extend(optimizer_problems(by_name.get(arm.name), arm))
        problems.extend(equality_problems(clients, bound))
        metrics |= {f"group{number}.{name}": v for name, v in differences(clients).items()}
    notes = [
        f"{', '.join(client.arm for client in clients)}: {len(clients[0].before_T)} tokens, "
        f"optimizer as sent {_shown(clients[0].sent)}"
        for clients in evidence.groups
        if clients
    ]
    if not evidence.exact or apart > 0.0:
        promise = "" if evidence.exact else "promises no equal bits and "
        notes.append(
            f"the service {promise}reads the same weights {apart:.3g} nats apart; bound {bound:.3g}"
        )
    notes.append("the service's state beyond log-probs and configuration stays unverified")
    return Finding("restoration", tuple(problems), tuple(notes), metrics)


def equal_starts(experiment: Experiment) -> list[RestorationGroup]:
    """The groups of arms that must start equal: the card's, else the registration's.

    What each arm of a registered group must send follows from its schedule and the Adam that is
    registered.
    """
    preflight = experiment.card.restoration_preflight
    if preflight is not None and preflight.applicable and preflight.groups:
        return preflight.groups
    registered = experiment.registration.restoration
    return [
        RestorationGroup(arms=[_as_registered(experiment, name) for name in names])
        for names in (experiment.arms_by_seed if registered == "by_seed" else registered)
    ]


def _as_registered(experiment: Experiment, name: str) -> RestorationArm:
    arm = experiment.arm(name)
    config = {
        **experiment.registration.training.adam.model_dump(),
        "learning_rate": arm.learning_rate,
        "init_seed": float(arm.seed),
        "lora_rank": float(experiment.card.lora_rank),
    }
    return RestorationArm(name=name, optimizer="adam", optimizer_config=config)


def optimizer_problems(client: ClientState | None, arm: RestorationArm) -> list[str]:
    """Where the configuration as sent is not the stated one, key by key."""
    if client is None:
        return [f"arm {arm.name}: no client was probed; probe every arm of the group"]
    problems = []
    if arm.optimizer != "adam":
        problems.append(f"arm {arm.name}: optimizer {arm.optimizer!r} can't be sent; use adam")
    for key, expected in arm.optimizer_config.items():
        sent = client.sent.get(key)
        if sent is None:
            problems.append(
                f"arm {arm.name}: {key} {expected:g} is stated and was not sent; send it"
            )
        elif sent != expected:
            problems.append(
                f"arm {arm.name}: {key} was sent as {sent:g}, {expected:g} is stated; "
                "make the two agree"
            )
    rank = arm.optimizer_config.get("lora_rank")
    if rank is not None and client.reported_rank not in (None, int(rank)):
        problems.append(
            f"arm {arm.name}: the service reports rank {client.reported_rank}, the arm has "
            f"{rank:g}; use a service that honours the rank"
        )
    return problems


def equality_problems(clients: list[ClientState], bound: float) -> list[str]:
    """Where the clients of a group differ, before or after the step."""
    if len(clients) < 2:
        return [f"{len(clients)} client(s) in a group; equality takes at least 2, probe each arm"]
    sizes = {len(row) for client in clients for row in (client.before_T, client.after_T)}
    if len(sizes) != 1 or sizes == {0}:
        return [f"clients returned {sorted(sizes)} log-probs for one batch; probe the same tokens"]
    found = differences(clients)
    problems = []
    for when, advice in (
        ("before", "create both from the same base model"),
        ("after", "the init seed is not honoured: A differs; use a service that honours it"),
    ):
        difference = found[f"difference_{when}"]
        if not difference <= bound:
            problems.append(
                f"log-probs differ by {difference:.3g} {when} an identical step, "
                f"bound {bound:.3g}; {advice}"
            )
    if not found["smallest_move"] > CLEARANCE * bound:
        problems.append(
            f"the throw-away step moved log-probs by {found['smallest_move']:.3g}, must be above "
            f"{CLEARANCE * bound:.3g}, so it shows nothing about A; check that optim_step is "
            "applied, or use a service that repeats itself"
        )
    return problems


def differences(clients: list[ClientState]) -> dict[str, float]:
    """The largest differences from the first client, and the smallest move of any client."""
    first = clients[0] if clients else None
    sizes = {len(row) for client in clients for row in (client.before_T, client.after_T)}
    if first is None or len(sizes) != 1 or sizes == {0}:
        return {}
    before = [np.asarray(client.before_T) for client in clients]
    after = [np.asarray(client.after_T) for client in clients]
    return {
        "difference_before": float(np.max([np.abs(row - before[0]).max() for row in before])),
        "difference_after": float(np.max([np.abs(row - after[0]).max() for row in after])),
        "smallest_move": float(
            np.min([np.abs(b - a).max() for a, b in zip(before, after, strict=True)])
        ),
    }


def _shown(sent: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in sent.items())
