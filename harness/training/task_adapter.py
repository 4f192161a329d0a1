"""How a policy meets a task: from an item to prompts and episodes, from an episode to figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import JsonValue

from harness.cards.registration import EvaluationSpec, TrainingSpec
from harness.records import Row

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.renderers import Renderer
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Trajectory

I_contra = TypeVar("I_contra", contravariant=True)


@dataclass(frozen=True)
class Graded:
    """What is kept of one episode apart from its tokens and its reward.

    `scores` are the task's own figures by name, the same names for every episode. `answer` is what
    the episode answered, as JSON, where its tokens alone do not say so.
    """

    scores: Mapping[str, float]
    answer: JsonValue = None


@dataclass(frozen=True)
class TaskAdapter(ABC, Generic[I_contra]):
    """Prompts, episodes and grading of one experiment's items.

    `renderer` is the cookbook's, made on the tokenizer of the model that the service trains.
    """

    renderer: Renderer
    training: TrainingSpec

    multi_turn: ClassVar[bool] = False
    """How episodes are sampled: a request a turn, or one for all single replies of a group."""

    @property
    def stop(self) -> list[str] | list[int]:
        """What ends a response."""
        return self.renderer.get_stop_sequences()

    @abstractmethod
    def tokens(self, item: I_contra) -> tinker.ModelInput:
        """The rendered prompt of an item, that of the first turn."""

    @abstractmethod
    def text(self, item: I_contra) -> list[int]:
        """A fixed text on an item that starts with its prompt, as tokens."""

    @abstractmethod
    def group(self, item: I_contra, size: int) -> EnvGroupBuilder:
        """The environments of `size` episodes on one item."""

    @abstractmethod
    def stock(self, item: I_contra, max_tokens: int) -> Env:
        """The environment of one episode by the registered settings, whatever `group` makes.

        Requests and rewards are held against it; `max_tokens` is of one reply.
        """

    @abstractmethod
    def graded(self, trajectory: Trajectory) -> Graded:
        """What the environment found in a finished episode."""

    @abstractmethod
    async def evaluated(
        self, sampler: tinker.SamplingClient, spec: EvaluationSpec, item: I_contra
    ) -> list[Row]:
        """Decode and grade one item, as often as registered.

        Raises:
            RunError: the service left the item without a response.
        """


# the loop looks into no item: only the adapter of its task does
AnyAdapter = TaskAdapter[Any]
