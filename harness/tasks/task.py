"""What every task is to a run: items of two splits, their hashes, and where they come from."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Item(Protocol):
    """One prompt of a split."""

    @property
    def id(self) -> str:
        """Its name, the same in every run."""
        ...

    @property
    def question(self) -> str:
        """What is asked, as a text."""
        ...


class Task(Protocol):
    """What a card trains and evaluates on, each split in its fixed order."""

    @property
    def train(self) -> Sequence[Item]:
        """The train split."""
        ...

    @property
    def test(self) -> Sequence[Item]:
        """The test split; empty where it may not be read yet."""
        ...

    @property
    def sha256s(self) -> Mapping[str, str]:
        """Hashes of what was read, by the names that a registration pins."""
        ...

    @property
    def headline(self) -> str:
        """The metric by which an evaluation is summed up."""
        ...

    @property
    def origin(self) -> str | None:
        """Where the data come from, as a verdict says it; None where the hashes say it all."""
        ...
