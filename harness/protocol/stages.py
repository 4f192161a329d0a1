"""What the stages of a run offer to whoever presents them.

`ExperimentRun` is the seam between the protocol and pytest: the plugin knows only this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pydantic.dataclasses import dataclass

from harness.audit.finding import Finding, GateFinding
from harness.cards import Experiment
from harness.decisions import Decision
from harness.records import StepRecord

if TYPE_CHECKING:
    from harness.protocol.services import Service


@dataclass(frozen=True)
class ArmSummary:
    """What one arm did: counted from its stored rollouts, not read from its configuration.

    `accuracy` is the share of right items in [0, 1], or where an answer is graded in between the
    mean score of the items; None before evaluation. `wall_seconds` is training and evaluation
    together, over all attempts.
    """

    name: str
    steps: int
    rollouts: int
    planned_steps: int
    planned_rollouts: int
    accuracy: float | None
    n_items: int
    wall_seconds: float
    final_reward: float


@dataclass(frozen=True)
class BaseSummary:
    """The base model's evaluation: the same items, decoded the same way, before any training."""

    accuracy: float
    n_items: int


@dataclass(frozen=True)
class Progress:
    """Where an arm is, for a live line. Rates are over the last step; times in seconds.

    `reward` is None while items are evaluated, which are graded and not rewarded.
    """

    arm: str
    stage: str
    step: int
    steps: int
    reward: float | None
    tokens_per_second: float
    seconds_left: float


class ExperimentRun(Protocol):
    """One experiment being taken from preflight to verdict.

    Every method produces its stage if it is missing, or waits for the process that is producing it,
    or reads it from the run store; asking twice costs nothing. Preconditions are the caller's: the
    fixtures ask for the stages in order. Every method may raise a HarnessError.
    """

    experiment: Experiment
    preflights: tuple[str, ...]
    gates: tuple[str, ...]
    criteria: tuple[str, ...]

    @property
    def service(self) -> Service:
        """Who trains."""
        ...

    def preflight(self, id: str) -> Finding:
        """One preflight: its evidence is collected once and checked each time."""
        ...

    def pilot(self) -> Mapping[str, Sequence[StepRecord]]:
        """The first steps of every arm: their records, by arm."""
        ...

    def gate(self, metric: str) -> GateFinding:
        """One activation gate, measured on the pilot's stored rollouts."""
        ...

    def pilot_notes(self) -> tuple[str, ...]:
        """Diagnostics of the pilot that decide nothing, such as B_eff."""
        ...

    def train(self) -> None:
        """Every arm to its last step, and every evaluation."""
        ...

    def arm(self, name: str) -> ArmSummary:
        """What a trained arm did."""
        ...

    def rows(self) -> Mapping[str, Mapping[str, float]]:
        """The score of each evaluated item by its id, by arm; `base` is the base model."""
        ...

    def base(self) -> BaseSummary:
        """The base model's evaluation."""
        ...

    def decision(self) -> Decision:
        """The experiment's verdict, with every criterion as it stands in it."""
        ...

    def diagnostics(self) -> tuple[str, ...]:
        """Lines that were not used for the verdict."""
        ...

    def attempts(self) -> int:
        """How many runs have started to train an arm; one that only reads the store has not."""
        ...

    def close(self) -> None:
        """Release what this process holds."""
        ...
