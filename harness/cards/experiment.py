"""Card, registration and scale, joined into one immutable experiment."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

from pydantic import Field, JsonValue

from harness import estimators, kernels
from harness.cards.card import Card, CardArm, DecisionRule, Frozen, GateCheck, Reason
from harness.cards.registration import (
    ArmSpec,
    Loss,
    LossBackend,
    OwnKernel,
    Registration,
    SettingValue,
)
from harness.components import Component, Components, DeclaredKernel, Estimator, Settings, parsed
from harness.errors import CardError
from harness.kernels.tfidf import Kernel

BUILT_IN = Components.built_in([*estimators.DECLARED, *kernels.DECLARED])
"""What every card may name."""


class Change(Frozen):
    """A part of card or registration that a scale replaces, and why."""

    pointer: str = Field(pattern=r"^/(card|registration)/")
    reason: Reason


class Scale(Frozen):
    """A JSON merge patch (RFC 7396) over `{"card": ..., "registration": ...}`.

    `full` is the empty patch. Every change must fall under a pointer in `changes`.
    `claims` says what a verdict at this scale speaks of. `service` says who serves it: the
    embedded engine, or the service at TINKER_BASE_URL. `data` says whose: `embedded` is made by
    the project, `published` is the task's own data set, which for word problems is also `gsm8k`.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    claims: Reason
    service: Literal["embedded", "remote"]
    data: Literal["embedded", "gsm8k", "published"]
    changes: list[Change]
    patch: dict[str, JsonValue]


@dataclass(frozen=True)
class Arm:
    """One training arm, ready to be executed.

    Per step it draws `groups_per_batch` prompts and samples `group_size` rollouts of each.
    `components` are those that the experiment may name.
    """

    name: str
    role: str
    seed: int
    group_size: int
    groups_per_batch: int
    steps: int
    learning_rate: float
    estimator: str
    kernel: Kernel | OwnKernel | None
    loss: Loss
    loss_config: Mapping[str, float] = field(default_factory=dict)
    lag: int = 0
    look: int = 1
    estimator_config: Mapping[str, SettingValue] = field(default_factory=dict)
    loss_backends: tuple[LossBackend, ...] = ("service",)
    components: Components = field(default=BUILT_IN, repr=False, compare=False)

    @property
    def declared(self) -> Estimator:
        """The estimator's declaration.

        Raises:
            CardError: nothing declares that name.
        """
        return self.components.find(Estimator, self.estimator)

    @property
    def settings(self) -> Settings:
        """The estimator's settings."""
        return parsed(self.declared.settings, self.estimator_config)

    @property
    def declared_kernel(self) -> tuple[DeclaredKernel, Settings] | None:
        """The kernel's declaration and its settings.

        Raises:
            CardError: nothing declares that name.
        """
        if self.kernel is None:
            return None
        if isinstance(self.kernel, Kernel):
            return self.components.find(DeclaredKernel, "tfidf"), self.kernel
        declared = self.components.find(DeclaredKernel, self.kernel.name)
        return declared, parsed(declared.settings, self.kernel.settings)

    @property
    def tfidf(self) -> Kernel | None:
        """The TF-IDF kernel that its estimator weighs prompts by, if it does."""
        taken = self.declared.kernel == "registered" and isinstance(self.kernel, Kernel)
        return self.kernel if taken and isinstance(self.kernel, Kernel) else None

    @property
    def unverified(self) -> tuple[str, ...]:
        """What the arm names and no reference stands behind: `estimator x`, `kernel y`."""
        used: list[Component] = [self.declared]
        if self.declared.kernel == "registered" and self.declared_kernel is not None:
            used.append(self.declared_kernel[0])
        return tuple(f"{each.kind} {each.name}" for each in used if each.unverified)

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
    """A card at a scale, as it is run. `sha256` identifies card, registration and scale.

    `learning_rates` are those that a tuning stage has chosen, by role; they replace the arms' own.
    """

    id: str
    card: Card
    registration: Registration
    scale: Scale
    card_sha256: str
    registration_sha256: str
    scale_sha256: str
    sha256: str
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    components: Components = field(default=BUILT_IN, repr=False)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The arms in the registration's order."""
        stated = {arm.name: arm for arm in self.card.arms or ()}
        specs = self.registration.arms
        arms = (_arm(spec, stated.get(spec.name), self.components) for spec in specs)
        rates = self.learning_rates
        return tuple(replace(a, learning_rate=rates.get(a.role, a.learning_rate)) for a in arms)

    @property
    def rule(self) -> DecisionRule:
        """The decision rule: the card's own, else the registration's.

        Raises:
            CardError: neither states one.
        """
        rule = self.card.decision_rule or self.registration.decision_rule
        if rule is None:
            raise CardError(f"{self.id}: no decision rule; state one in the registration")
        return rule

    @property
    def gates(self) -> tuple[GateCheck, ...]:
        """The activation gates: the card's, then the registration's."""
        stated = self.card.activation_gate
        own = stated.checks if stated is not None and stated.applicable else []
        return (*own, *self.registration.extra_gates)

    def arm(self, name: str) -> Arm:
        """The arm of that name.

        Raises:
            KeyError: no arm has that name.
        """
        return {arm.name: arm for arm in self.arms}[name]

    def role(self, role: str, look: int = 1) -> tuple[Arm, ...]:
        """The arms that play that role in that look, one per seed."""
        return tuple(arm for arm in self.look(look) if arm.role == role)

    def look(self, look: int) -> tuple[Arm, ...]:
        """The arms of that look: 1 is trained in any case, 2 if the rule calls for it."""
        return tuple(arm for arm in self.arms if arm.look == look)

    @property
    def arms_by_seed(self) -> list[list[str]]:
        """The names of the arms that share a seed, where two or more do."""
        seeds = dict.fromkeys(arm.seed for arm in self.arms)
        groups = [[arm.name for arm in self.arms if arm.seed == seed] for seed in seeds]
        return [group for group in groups if len(group) > 1]

    @property
    def probe_prompts(self) -> int:
        """Train prompts of gradient probes, at the far end of the order: no arm trains on them."""
        probe = self.registration.gradient_probe
        return 0 if probe is None else max(probe.prompts(arm.steps) for arm in self.arms)

    @property
    def weighed_roles(self) -> tuple[str, ...]:
        """The roles of arms that a criterion weighs; the others decide nothing."""
        weighed = {role for criterion in self.rule.criteria for role in criterion.weights}
        return tuple(dict.fromkeys(arm.role for arm in self.arms if arm.role in weighed))

    @cached_property
    def contrast(self) -> dict[str, dict[str, str]]:
        """The fields in which arms of weighed roles differ: what each role has, as text."""
        roles = {role: next(a for a in self.arms if a.role == role) for role in self.weighed_roles}
        shown = {
            f.name: {role: _shown(getattr(arm, f.name)) for role, arm in roles.items()}
            for f in fields(Arm)
            if f.name not in _OF_ITS_OWN
        }
        return {name: of for name, of in shown.items() if len(set(of.values())) > 1}

    @property
    def data_source(self) -> str:
        """Where the data come from, as the scale says it; nothing else is ever read."""
        search = self.registration.search
        if self.scale.data != "embedded":
            return f"published: {self.card.dataset.hf_path}"
        if search is None or search.world is None:
            return "generated by the project"
        shown = sorted(search.world.model_dump(mode="json").items())
        return f"generated by the project: {', '.join(f'{key} {value}' for key, value in shown)}"

    @property
    def unverified(self) -> tuple[str, ...]:
        """What its arms and its rule name and no reference stands behind."""
        rule = self.rule
        methods = [rule.method, *(criterion.method for criterion in rule.criteria)]
        own = [self.components.get("decision method", name) for name in methods if name]
        lacking = [f"{each.kind} {each.name}" for each in own if each and each.unverified]
        return tuple(dict.fromkeys([*(x for arm in self.arms for x in arm.unverified), *lacking]))

    @property
    def lagged(self) -> bool:
        """Whether any arm samples from older weights than it updates."""
        return any(arm.lag for arm in self.arms)


_OF_ITS_OWN = frozenset({"name", "role", "seed", "look", "components"})
"""What arms of one role have each for themselves, or all alike."""


def _shown(value: object) -> str:
    if isinstance(value, Frozen):
        return value.model_dump_json(exclude_defaults=True)
    return str(value)


def _arm(spec: ArmSpec, stated: CardArm | None, components: Components) -> Arm:
    kernel = spec.kernel
    if stated is not None and isinstance(kernel, Kernel) and kernel.tau is None:
        kernel = kernel.model_copy(update={"tau": stated.tau})
    schedule = spec.schedule if stated is None else stated.schedule()
    if schedule is None:
        raise CardError(f"arm {spec.name}: neither card nor registration gives it a schedule")
    return Arm(
        name=spec.name,
        role=spec.role,
        seed=schedule.seed,
        group_size=schedule.group_size,
        groups_per_batch=schedule.groups_per_batch,
        steps=schedule.steps,
        learning_rate=schedule.learning_rate,
        estimator=spec.estimator,
        kernel=kernel,
        loss=spec.loss,
        loss_config=dict(spec.loss_config),
        lag=spec.lag,
        look=spec.look,
        estimator_config=dict(spec.estimator_config),
        loss_backends=spec.loss_backends,
        components=components,
    )
