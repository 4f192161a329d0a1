"""A prompt kernel, declared once: from the train questions to leave-one-out weights of a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from harness.components.component import Component
from harness.components.settings import NoSettings, Settings

if TYPE_CHECKING:
    from harness.components.estimator import Weights

AnySettings = TypeVar("AnySettings", bound=Settings)

WeightsOf = Callable[[Sequence[str]], "Weights"]
"""From the questions of one batch to leave-one-out weights (P, P): zero diagonal, rows sum to 1."""

Fit = Callable[[Sequence[str], Settings], WeightsOf]


@dataclass(frozen=True)
class DeclaredKernel(Component):
    """A declared kernel. `fit` is called once an arm, with every train question.

    `reference` is the same by other code; a kernel without one is said to be unverified.
    """

    kind: ClassVar[str] = "kernel"

    fit: Fit
    settings: type[Settings]
    reference: Fit | None

    @property
    def home(self) -> str:
        """The module that declares it."""
        return self.fit.__module__

    @property
    def unverified(self) -> bool:
        """Whether it has no reference."""
        return self.reference is None


def kernel(
    name: str | None = None,
    *,
    settings: type[AnySettings] | type[NoSettings] = NoSettings,
    reference: Callable[[Sequence[str], AnySettings], WeightsOf] | None = None,
) -> Callable[[Callable[[Sequence[str], AnySettings], WeightsOf]], DeclaredKernel]:
    """Declare a function from train questions and settings to `WeightsOf` as a kernel.

    Args:
        name: what a registration calls it; the function's own name if not given.
        settings: the model of the kernel's settings.
        reference: the same by other code.
    """

    def declare(function: Callable[[Sequence[str], AnySettings], WeightsOf]) -> DeclaredKernel:
        return DeclaredKernel(
            name=name or function.__name__,
            fit=cast(Fit, function),
            settings=settings,
            reference=cast("Fit | None", reference),
        )

    return declare
