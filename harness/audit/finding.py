"""What a check returns: problems for the verdict, notes and metrics for the reader."""

from collections.abc import Mapping
from dataclasses import field

from pydantic.dataclasses import dataclass

from harness.cards import GateCheck


@dataclass(frozen=True)
class Finding:
    """The result of one preflight.

    `problems` is empty exactly if the preflight passed; each is one line that names the value, the
    bound and what to do. `notes` are lines worth reading even when it passed. `metrics` are the
    measured figures by name. One that could not be `carried_out` has the error as its problem.
    """

    id: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    carried_out: bool = True

    @property
    def ok(self) -> bool:
        """Whether the preflight passed."""
        return not self.problems

    @property
    def message(self) -> str:
        """All problems, one a line."""
        return "\n".join(f"{self.id}: {problem}" for problem in self.problems)


@dataclass(frozen=True)
class GateFinding:
    """The result of one activation gate: the value that was executed, against its bounds.

    `value` is None if the pilot did not produce what the gate measures, which fails the gate.
    """

    check: GateCheck
    value: float | str | None
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the executed value lies within the gate's bounds."""
        return not self.problems

    @property
    def sentence(self) -> str:
        """One line: the gate, the value, the bounds."""
        if self.problems:
            return "\n".join(self.problems)
        return f"gate {self.check.metric}: {_shown(self.value)} is within {bounds_of(self.check)}"


def bounds_of(check: GateCheck) -> str:
    """The values that a gate accepts, as a reader writes them."""
    if check.one_of:
        return "{" + ", ".join(check.one_of) + "}"
    low = "-inf" if check.min is None else f"{check.min:g}"
    high = "inf" if check.max is None else f"{check.max:g}"
    return f"[{low}, {high}]"


def _shown(value: float | str | None) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
