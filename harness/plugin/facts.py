"""What was learned about an experiment, as it crosses from worker to controller."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from pydantic import JsonValue, TypeAdapter

from harness.audit.finding import Finding, GateFinding

if TYPE_CHECKING:
    from harness.decisions import Decision
    from harness.protocol.stages import ArmSummary, BaseSummary


@dataclass(frozen=True)
class Assertion:
    """A test of the author's own, the stage that it is of, and the sha256 of its source."""

    stage: str
    source_sha256: str


@dataclass
class Facts:
    """All that one process, or all of them together, learned about one experiment."""

    preflights: dict[str, Finding] = field(default_factory=dict)
    gates: dict[str, GateFinding] = field(default_factory=dict)
    arms: dict[str, ArmSummary] = field(default_factory=dict)
    base: BaseSummary | None = None
    decision: Decision | None = None
    notes: tuple[str, ...] = ()
    diagnostics: tuple[str, ...] = ()
    attempts: int = 0
    assertions: dict[str, Assertion] = field(default_factory=dict)

    def to_plain(self) -> JsonValue:
        """Dicts, lists and plain values only: anything else would end an xdist run."""
        plain: JsonValue = _adapter().dump_python(self, mode="json")
        return plain

    @classmethod
    def of(cls, plain: JsonValue) -> Facts:
        """Read what `to_plain` made."""
        return _adapter().validate_python(plain)

    def learn(self, other: Facts) -> None:
        """Take over what another process learned; both read the same run store."""
        self.preflights |= other.preflights
        self.gates |= other.gates
        self.arms |= other.arms
        self.base = other.base or self.base
        self.decision = other.decision or self.decision
        self.notes = other.notes or self.notes
        self.diagnostics = other.diagnostics or self.diagnostics
        self.assertions |= other.assertions
        self.attempts = max(self.attempts, other.attempts)

    def checked(self, stage: str, name: str) -> Finding | GateFinding | None:
        """The finding of a preflight or gate, None if it is neither or not known."""
        if stage == "preflight":
            return self.preflights.get(name)
        return self.gates.get(name) if stage == "gate" else None

    def word(self, stage: str, name: str) -> str:
        """PASSED or INVALID for a preflight, gate or arm that is known of, else NOT RUN.

        A criterion is decided by its item, so without one it is NOT RUN.
        """
        if finding := self.checked(stage, name):
            return "PASSED" if finding.ok else "INVALID"
        return "PASSED" if stage == "arm" and name in self.arms else "NOT RUN"

    def problem(self, stage: str, name: str) -> str:
        """What a preflight or gate that did not pass says, empty if it passed or is not known."""
        finding = self.checked(stage, name)
        return "\n".join(finding.problems) if finding else ""

    def metrics(self, stage: str, name: str) -> dict[str, float | str | None]:
        """The figures measured for one preflight, gate, arm or criterion."""
        if stage == "preflight" and name in self.preflights:
            return dict(self.preflights[name].metrics)
        if stage == "gate" and name in self.gates:
            return {name: self.gates[name].value}
        if stage == "arm" and name in self.arms:
            known = asdict(self.arms[name])
            return {key: known[key] for key in known if key != "name" and "planned" not in key}
        if stage == "decision" and self.decision is not None and name in self.decision.outcomes:
            outcome = asdict(self.decision.outcomes[name])
            return {key: outcome[key] for key in ("estimate", "lower", "upper", "margin")}
        return {}


def named(error: BaseException) -> str:
    """An error's class and text."""
    return f"{type(error).__name__}: {error}"


@cache
def _adapter() -> TypeAdapter[Facts]:
    # these load scipy, which collection has no use for; the adapter looks their names up here
    from harness.decisions import Decision  # noqa: F401
    from harness.protocol.stages import ArmSummary, BaseSummary  # noqa: F401

    return TypeAdapter(Facts)
