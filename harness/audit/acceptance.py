"""Outcomes other than a clean pass that the registration accepts with a reason.

An acceptance is a decision about something: it says what it was given for, and holds for that
alone. One copied from another experiment, or that outlived a changed margin, is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from pydantic import JsonValue

from harness.cards import Experiment


@dataclass(frozen=True)
class Settled:
    """Lines for a finding: problems that block, notes that do not."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def settle(
    experiment: Experiment,
    preflight: str,
    outcome: str,
    lines: Sequence[str],
    given_for: Mapping[str, JsonValue],
) -> Settled:
    """Turn lines into notes if the registration accepts this outcome, else into problems.

    Args:
        experiment: has the acceptances.
        preflight: whose outcome it is.
        outcome: what can be accepted.
        lines: what speaks against a run, all about one thing.
        given_for: that thing, in values that change when it does.
    """
    stated = [
        acceptance
        for acceptance in experiment.registration.accepted
        if acceptance.preflight == preflight and acceptance.outcome == outcome
    ]
    holding = [acceptance for acceptance in stated if acceptance.given_for == dict(given_for)]
    if holding:
        return Settled(notes=tuple(f"{line} (accepted: {holding[0].reason})" for line in lines))
    wanted = shown(given_for)
    advice = f"or accept {outcome} for {preflight} in the registration, with a reason"
    if stated:
        given = " and ".join(shown(acceptance.given_for) for acceptance in stated)
        advice = f"the registration accepts {outcome} for {preflight}, given for {given}"
    return Settled(problems=tuple(f"{line}; {advice}, given_for {wanted}" for line in lines))


def shown(given_for: Mapping[str, JsonValue]) -> str:
    """What an acceptance is given for, as it is written down."""
    return orjson.dumps(dict(given_for), option=orjson.OPT_SORT_KEYS).decode()
