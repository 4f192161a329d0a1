"""Outcomes other than a clean pass that the registration accepts with a reason."""

from dataclasses import dataclass

from harness.cards import Experiment


@dataclass(frozen=True)
class Settled:
    """Lines for a finding: problems that block, notes that do not."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def settle(experiment: Experiment, preflight: str, outcome: str, lines: list[str]) -> Settled:
    """Turn lines into notes if the registration accepts this outcome, else into problems."""
    reasons = [
        acceptance.reason
        for acceptance in experiment.registration.accepted
        if acceptance.preflight == preflight and acceptance.outcome == outcome
    ]
    if not reasons:
        advice = f"or accept {outcome} for {preflight} in the registration, with a reason"
        return Settled(problems=tuple(f"{line}; {advice}" for line in lines))
    return Settled(notes=tuple(f"{line} (accepted: {reasons[0]})" for line in lines))
