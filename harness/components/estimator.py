"""An advantage estimator, declared once: formula, settings, needs, reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, cast

from pydantic import JsonValue

from harness.components.component import Component
from harness.components.settings import NoSettings, Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = NDArray[np.float64]

AnySettings = TypeVar("AnySettings", bound=Settings)

Rows = Sequence["Sequence[float] | NDArray[np.float64]"]


@dataclass(frozen=True)
class StepRewards:
    """What an estimator sees of one optimizer step: P prompts with their graded rollouts.

    `step` counts from 0. `rewards_P_G` are finite numbers; groups may differ in size. `state` is
    what the estimator returned for the step before, None at step 0. `weights_P_P` are the
    leave-one-out weights of the arm's kernel (zero diagonal, rows sum to 1), for an estimator that
    takes one.
    """

    step: int
    questions_P: Sequence[str]
    rewards_P_G: Rows
    state: JsonValue = None
    weights_P_P: "Weights | None" = None


@dataclass(frozen=True)
class Estimate:
    """Advantages of one step, in the order of the rewards, and what the next step needs.

    `state` is plain JSON; it is stored with the step, and a resumed arm goes on from it.
    `baselines_P` may be given where each prompt has one rollout; it is recorded.
    """

    advantages_P_G: Rows
    state: JsonValue = None
    baselines_P: Sequence[float] | None = None


Function = Callable[[StepRewards, Settings], Estimate]


@dataclass(frozen=True)
class Estimator(Component):
    """A declared estimator.

    `reference` is the same estimator by other code: slow, plain, in float64. An estimator without
    one is used, and said to be unverified. `kernel` says whose leave-one-out weights it takes:
    those of the arm's registered kernel, uniform ones, or none. One that is `leave_one_out` has a
    baseline that does not move with a rollout's own reward, which is tried. `pinned` estimators are
    held to the reference file that the registration pins.
    """

    kind: ClassVar[str] = "estimator"

    function: Function
    settings: type[Settings]
    reference: Function | None
    kernel: Literal["none", "registered", "uniform"]
    min_group_size: int
    max_group_size: int | None
    min_prompts: int
    binary_rewards: bool
    leave_one_out: bool
    pinned: bool

    @property
    def home(self) -> str:
        """The module that declares it."""
        return self.function.__module__

    @property
    def unverified(self) -> bool:
        """Whether it has no reference."""
        return self.reference is None

    @property
    def takes(self) -> str:
        """How many rollouts of a prompt it takes, in words."""
        least, most = self.min_group_size, self.max_group_size
        if most == least:
            return f"{least} rollout{'s' * (least != 1)}"
        return f"{least} {'or more' if most is None else f'to {most}'} rollouts"

    def __call__(self, step: StepRewards, settings: Settings) -> Estimate:
        """The declared function itself."""
        return self.function(step, settings)


def estimator(
    name: str | None = None,
    *,
    settings: type[AnySettings] | type[NoSettings] = NoSettings,
    reference: Callable[[StepRewards, AnySettings], Estimate] | None = None,
    kernel: Literal["none", "registered", "uniform"] = "none",
    group_size: tuple[int, int | None] = (1, None),
    min_prompts: int = 1,
    binary_rewards: bool = False,
    leave_one_out: bool = False,
    pinned: bool = False,
) -> Callable[[Callable[[StepRewards, AnySettings], Estimate]], Estimator]:
    """Declare a function from a step's rewards and settings to an `Estimate` as an estimator.

    Args:
        name: what a registration calls it; the function's own name if not given.
        settings: the model of `estimator_config`.
        reference: the same by other code.
        kernel: whose leave-one-out weights it takes.
        group_size: rollouts a prompt that it can work with, least and most.
        min_prompts: prompts a step that it needs.
        binary_rewards: whether it takes rewards of 0 and 1 only.
        leave_one_out: whether no rollout's baseline moves with its own reward.
        pinned: whether the registration must pin a reference file for it.
    """

    def declare(function: Callable[[StepRewards, AnySettings], Estimate]) -> Estimator:
        # a registration's settings are checked by the model before either function sees them
        return Estimator(
            name=name or function.__name__,
            function=cast(Function, function),
            settings=settings,
            reference=cast("Function | None", reference),
            kernel=kernel,
            min_group_size=group_size[0],
            max_group_size=group_size[1],
            min_prompts=min_prompts,
            binary_rewards=binary_rewards,
            leave_one_out=leave_one_out,
            pinned=pinned,
        )

    return declare


def each_group(
    formula: Callable[[list[float], AnySettings], Sequence[float]],
) -> Callable[[StepRewards, AnySettings], Estimate]:
    """An estimator that looks at one group at a time, from its formula for one group (G)."""

    def estimate(step: StepRewards, settings: AnySettings) -> Estimate:
        return Estimate([formula(list(rewards_G), settings) for rewards_G in step.rewards_P_G])

    return estimate
