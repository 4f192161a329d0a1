"""Card, registration and scale, joined into one immutable experiment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import Field, JsonValue

from harness.cards.card import Card, CardArm, Frozen
from harness.cards.registration import ArmSpec, Kernel, Loss, Registration, Role


class Change(Frozen):
    """A part of card or registration that a scale replaces, and why."""

    pointer: str = Field(pattern=r"^/(card|registration)/")
    reason: str


class Scale(Frozen):
    """A JSON merge patch (RFC 7396) over `{"card": ..., "registration": ...}`.

    `full` is the empty patch. Every change must fall under a pointer in `changes`.
    `claims` says what a verdict at this scale speaks of. `service` says who serves it: the
    embedded engine, or the service at TINKER_BASE_URL.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    claims: str
    service: str = Field(pattern=r"^(embedded|remote)$")
    data: str = Field(pattern=r"^(embedded|gsm8k)$")
    changes: list[Change]
    patch: dict[str, JsonValue]


@dataclass(frozen=True)
class Arm:
    """One training arm, ready to be executed.

    Per step it draws `groups_per_batch` prompts and samples `group_size` rollouts of each.
    """

    name: str
    role: Role
    seed: int
    group_size: int
    groups_per_batch: int
    steps: int
    learning_rate: float
    estimator: str
    kernel: Kernel | None
    loss: Loss
    loss_config: Mapping[str, float] = field(default_factory=dict)
    lag: int = 0

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts that one optimizer step is made of."""
        return self.group_size * self.groups_per_batch

    @property
    def prompts(self) -> int:
        """Distinct prompts that the arm consumes in all its steps."""
        return self.groups_per_batch * self.steps


@dataclass(frozen=True)
class Experiment:
    """A card at a scale, as it is run. `sha256` identifies card, registration and scale."""

    id: str
    card: Card
    registration: Registration
    scale: Scale
    card_sha256: str
    registration_sha256: str
    scale_sha256: str
    sha256: str

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The arms in the registration's order."""
        stated = {arm.name: arm for arm in self.card.arms or ()}
        return tuple(_arm(spec, stated) for spec in self.registration.arms)

    def arm(self, name: str) -> Arm:
        """The arm of that name.

        Raises:
            KeyError: no arm has that name.
        """
        return {arm.name: arm for arm in self.arms}[name]

    def role(self, role: Role) -> tuple[Arm, ...]:
        """The arms that play that role, one per seed."""
        return tuple(arm for arm in self.arms if arm.role == role)


def _arm(spec: ArmSpec, stated: Mapping[str, CardArm]) -> Arm:
    card_arm = stated[spec.name]
    kernel = spec.kernel
    if kernel is not None and kernel.tau is None:
        kernel = kernel.model_copy(update={"tau": card_arm.tau})
    return Arm(
        name=spec.name,
        role=spec.role,
        seed=card_arm.seed,
        group_size=card_arm.group_size,
        groups_per_batch=card_arm.groups_per_batch,
        steps=card_arm.steps,
        learning_rate=card_arm.lr,
        estimator=spec.estimator,
        kernel=kernel,
        loss=spec.loss,
        loss_config=dict(spec.loss_config),
        lag=spec.lag,
    )
