"""From a problem to the tokens that the policy sees, by the cookbook's own classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from harness.cards.registration import TrainingSpec

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.renderers import Message, Renderer
    from tinker_cookbook.rl.problem_env import ProblemGroupBuilder

    from harness.tasks.gsm8k import Problem


GRADING_SECONDS = 60.0


@dataclass(frozen=True)
class Prompter:
    """Builds prompts and environments of one experiment.

    `renderer` is the cookbook's, made on the tokenizer of the model that the service trains.
    """

    renderer: Renderer
    training: TrainingSpec

    @property
    def stop(self) -> list[str] | list[int]:
        """What ends a response."""
        return self.renderer.get_stop_sequences()

    def tokens(self, problem: Problem) -> tinker.ModelInput:
        """The rendered prompt of a problem."""
        from tinker_cookbook.recipes.math_rl.math_env import MathEnv

        question: Message = {
            "role": "user",
            "content": problem.question + MathEnv.question_suffix(),
        }
        return self.renderer.build_generation_prompt([*self._prefix(), question])

    def group(self, problem: Problem, size: int) -> ProblemGroupBuilder:
        """The cookbook's environments for `size` rollouts of one problem."""
        from tinker_cookbook.recipes.math_rl.math_env import MathEnv
        from tinker_cookbook.rl.problem_env import ProblemGroupBuilder

        make: Callable[[], MathEnv] = partial(
            MathEnv,
            problem.question,
            problem.gold,
            self.renderer,
            convo_prefix=self._prefix(),
            format_coef=self.training.format_coefficient,
            # the cookbook's second would make a reward depend on the load of this machine
            timeout=GRADING_SECONDS,
        )
        return ProblemGroupBuilder(env_thunk=make, num_envs=size)

    def _prefix(self) -> list[Message]:
        from tinker_cookbook.recipes.math_rl.math_env import MathEnv

        return MathEnv.standard_fewshot_prefix() if self.training.few_shot == "standard" else []


def prompter(tokenizer_source: str, training: TrainingSpec) -> Prompter:
    """A prompter on the tokenizer of a folder or a hub's model name."""
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    return Prompter(get_renderer(training.renderer, get_tokenizer(tokenizer_source)), training)
