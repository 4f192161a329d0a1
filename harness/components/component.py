"""What every declaration has in common, whatever it declares."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Component(ABC):
    """A declaration: `kind` says of what, in a reader's words, and `name` what a card calls it."""

    kind: ClassVar[str]

    name: str

    @property
    @abstractmethod
    def home(self) -> str:
        """The module that declares it."""

    @property
    def unverified(self) -> bool:
        """Whether no other code says that it is right, of a kind that has a reference."""
        return False
