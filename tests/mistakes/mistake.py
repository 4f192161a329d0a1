"""What is known of a planted mistake: where it is planted, when it shows, and what must say so."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Edit = Callable[[Any], object]
"""Plants a mistake: given pytest's monkeypatch, or the evidence, records or card to spoil."""

Where = Literal[
    "card", "scale", "data", "task", "reward", "packages", "estimator", "kernel", "loop", "service",
    "store", "evaluation", "decision",
]  # fmt: skip
Stage = Literal["reading", "preflight", "pilot", "training", "resuming", "evaluation", "decision"]
Way = Literal["evidence", "records", "first_steps", "whole_run", "gates", "scale", "session"]
Setting = Literal["problems", "episodes", "gs1", "lag", "search"]


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Args:
        name: by which tests and sessions call for it; of one way the name says it all.
        where: what holds the mistake.
        stage: when it shows.
        items: the preflights, gates, arm or decision that must turn red; they and no other.
        words: what the message must say, so that its reader finds the cause.
        edit: plants it; its docstring or name says what somebody did.
        way: how it is run, which says what the edit is given.
        settings: the experiments in which it is planted, where its way has several.
        live: planted in a session of its own too: one of each kind is, a place and a stage.
    """

    name: str
    where: Where
    stage: Stage
    items: frozenset[str]
    words: str
    edit: Edit
    way: Way
    settings: tuple[Setting, ...] = ("problems",)
    live: bool = False

    @property
    def item(self) -> str:
        """The only item that must turn red."""
        (item,) = self.items
        return item

    @property
    def kind(self) -> tuple[Where, Stage]:
        """Mistakes of one kind take the same path through a session."""
        return self.where, self.stage


def cells(mistakes: tuple[Mistake, ...]) -> list[tuple[Mistake, Setting]]:
    """Each mistake with each of its settings."""
    return [(mistake, setting) for mistake in mistakes for setting in mistake.settings]


def named(value: object) -> str:
    """The id of a mistake or a setting in a table of tests."""
    return value.name if isinstance(value, Mistake) else str(value)
