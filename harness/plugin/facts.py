"""What was learned about an experiment, in plain values that cross from worker to controller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from harness.audit.finding import Finding, GateFinding
    from harness.decisions import Outcome
    from harness.protocol.stages import ArmSummary, BaseSummary

Plain = str | float | int | bool | None


class PreflightFact(TypedDict):
    """`outcome` is passed, failed (it found problems) or error (it could not be carried out)."""

    outcome: str
    message: str
    notes: list[str]
    metrics: dict[str, Plain]


class GateFact(TypedDict):
    """One activation gate: the value that was executed against the bounds."""

    value: Plain
    ok: bool
    sentence: str


class ArmFact(TypedDict):
    """One arm; see `harness.protocol.stages.ArmSummary`."""

    steps: int
    rollouts: int
    planned_steps: int
    planned_rollouts: int
    accuracy: float | None
    n_items: int
    wall_seconds: float
    final_reward: float


class BaseFact(TypedDict):
    """The base model's evaluation."""

    accuracy: float
    n_items: int


class CriterionFact(TypedDict):
    """The registered rule applied to one criterion; see `harness.decisions.Outcome`."""

    estimate: float | None
    lower: float | None
    upper: float | None
    margin: float
    n: int
    alpha: float
    method: str
    outcome: str
    sentence: str


@dataclass
class Facts:
    """All that one process, or all of them together, learned about one experiment."""

    preflights: dict[str, PreflightFact] = field(default_factory=dict)
    gates: dict[str, GateFact] = field(default_factory=dict)
    arms: dict[str, ArmFact] = field(default_factory=dict)
    base: BaseFact | None = None
    criteria: dict[str, CriterionFact] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    diagnostics: list[str] = field(default_factory=list)
    attempts: int = 0

    def to_plain(self) -> dict[str, object]:
        """Dicts, lists and plain values only: anything else would end an xdist run."""
        return asdict(self)

    def learn(self, other: Facts) -> None:
        """Take over what another process learned; both read the same run store."""
        self.preflights |= other.preflights
        self.gates |= other.gates
        self.arms |= other.arms
        self.criteria |= other.criteria
        self.base = other.base or self.base
        self.notes = other.notes or self.notes
        self.diagnostics = other.diagnostics or self.diagnostics
        self.attempts = max(self.attempts, other.attempts)

    def word(self, stage: str, name: str) -> str:
        """PASSED or INVALID for a preflight, gate or arm that is known of, else NOT RUN.

        A criterion is decided by its item, so without one it is NOT RUN.
        """
        if stage == "preflight" and name in self.preflights:
            return "PASSED" if self.preflights[name]["outcome"] == "passed" else "INVALID"
        if stage == "gate" and name in self.gates:
            return "PASSED" if self.gates[name]["ok"] else "INVALID"
        return "PASSED" if stage == "arm" and name in self.arms else "NOT RUN"

    def problem(self, stage: str, name: str) -> str:
        """What a preflight or gate that did not pass says, empty if it passed or is not known."""
        if self.word(stage, name) != "INVALID":
            return ""
        if stage == "preflight":
            return self.preflights[name]["message"]
        return self.gates[name]["sentence"]

    def metrics(self, stage: str, name: str) -> dict[str, Plain]:
        """The figures measured for one preflight, gate, arm or criterion."""
        if stage == "preflight" and name in self.preflights:
            return self.preflights[name]["metrics"]
        if stage == "gate" and name in self.gates:
            return {name: self.gates[name]["value"]}
        if stage == "arm" and name in self.arms:
            arm = self.arms[name]
            return {key: plain(value) for key, value in arm.items() if "planned" not in key}
        if stage == "decision" and name in self.criteria:
            criterion = self.criteria[name]
            return {
                "estimate": criterion["estimate"],
                "lower": criterion["lower"],
                "upper": criterion["upper"],
                "margin": criterion["margin"],
            }
        return {}


def preflight_fact(finding: Finding) -> PreflightFact:
    """A finding in plain values."""
    return {
        "outcome": "passed" if finding.ok else "failed",
        "message": "\n".join(map(str, finding.problems)),
        "notes": [str(note) for note in finding.notes],
        "metrics": plain_metrics(finding.metrics),
    }


def preflight_error(error: Exception) -> PreflightFact:
    """A preflight that could not be carried out."""
    return {"outcome": "error", "message": named(error), "notes": [], "metrics": {}}


def gate_fact(finding: GateFinding) -> GateFact:
    """A gate's finding in plain values."""
    return {
        "value": plain(finding.value),
        "ok": finding.ok,
        "sentence": str(finding.sentence),
    }


def arm_fact(arm: ArmSummary) -> ArmFact:
    """An arm's summary in plain values."""
    return {
        "steps": int(arm.steps),
        "rollouts": int(arm.rollouts),
        "planned_steps": int(arm.planned_steps),
        "planned_rollouts": int(arm.planned_rollouts),
        "accuracy": number(arm.accuracy),
        "n_items": int(arm.n_items),
        "wall_seconds": float(arm.wall_seconds),
        "final_reward": float(arm.final_reward),
    }


def base_fact(base: BaseSummary) -> BaseFact:
    """The base model's evaluation in plain values."""
    return {"accuracy": float(base.accuracy), "n_items": int(base.n_items)}


def criterion_fact(outcome: Outcome) -> CriterionFact:
    """A criterion's outcome in plain values."""
    return {
        "estimate": number(outcome.estimate),
        "lower": number(outcome.lower),
        "upper": number(outcome.upper),
        "margin": float(outcome.margin),
        "n": int(outcome.n),
        "alpha": float(outcome.alpha),
        "method": str(outcome.method),
        "outcome": str(outcome.verdict),
        "sentence": str(outcome.sentence),
    }


def named(error: BaseException) -> str:
    """An error's class and text."""
    return f"{type(error).__name__}: {error}"


def plain_metrics(metrics: Mapping[str, object]) -> dict[str, Plain]:
    """Figures by name, every value plain."""
    return {str(name): plain(value) for name, value in metrics.items()}


def number(value: float | None) -> float | None:
    """A float of Python's own, or None."""
    return None if value is None else float(value)


def plain(value: object) -> Plain:
    """A str, float, int, bool or None; numpy scalars by their value, anything else as text."""
    if value is None or type(value) in (str, bool, int, float):
        return value  # type: ignore[return-value]  # exactly one of the types above
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 0) == 1:
        return plain(item())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return str(value)


def shown(value: Plain, sign: str = "") -> str:
    """A figure as a reader writes it."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:{sign}.4g}"
    return "-" if value is None else str(value)
