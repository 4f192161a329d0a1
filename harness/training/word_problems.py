"""Word problems: one reply, graded by the cookbook's environment and by the registered rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from harness.cards.registration import EvaluationSpec, TrainingSpec
from harness.errors import RunError
from harness.records import ItemRow, Row
from harness.tasks.grading import boxed_number, final_number, is_exact
from harness.tasks.gsm8k import Problem
from harness.training.completers import Sampling
from harness.training.streams import stream_seed
from harness.training.task_adapter import Graded, TaskAdapter

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.renderers import Message
    from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
    from tinker_cookbook.rl.types import Env, Trajectory
    from tinker_cookbook.tokenizer_utils import Tokenizer

GRADING_SECONDS = 60.0


@dataclass(frozen=True)
class ProblemAdapter(TaskAdapter[Problem]):
    """Prompts and environments of the cookbook's math recipe."""

    def tokens(self, item: Problem) -> tinker.ModelInput:
        """The rendered prompt of a problem."""
        from tinker_cookbook.recipes.math_rl.math_env import MathEnv

        question: Message = {
            "role": "user",
            "content": item.question + MathEnv.question_suffix(),
        }
        return self.renderer.build_generation_prompt([*self._prefix(), question])

    def text(self, item: Problem) -> list[int]:
        """A problem's rendered prompt and its worked solution."""
        solution = self.renderer.tokenizer.encode(item.solution, add_special_tokens=False)
        return [*self.tokens(item).to_ints(), *(int(token) for token in solution)]

    def group(self, item: Problem, size: int) -> ProblemGroupBuilder:
        """The cookbook's environments for `size` rollouts of one problem."""
        from tinker_cookbook.recipes.math_rl.math_env import MathEnv
        from tinker_cookbook.rl.problem_env import ProblemGroupBuilder

        make: Callable[[], MathEnv] = partial(
            MathEnv,
            item.question,
            item.gold,
            self.renderer,
            convo_prefix=self._prefix(),
            format_coef=self.training.format_coefficient,
            # the cookbook's second would make a reward depend on the load of this machine
            timeout=GRADING_SECONDS,
        )
        return ProblemGroupBuilder(env_thunk=make, num_envs=size)

    def stock(self, item: Problem, max_tokens: int) -> Env:  # noqa: ARG002  one reply has no budget
        """The cookbook's environment of one reply."""
        from tinker_cookbook.recipes.math_rl.math_env import MathEnv

        few_shot = self.training.few_shot == "standard"
        return MathEnv(
            item.question,
            item.gold,
            self.renderer,
            convo_prefix=MathEnv.standard_fewshot_prefix() if few_shot else [],
            format_coef=self.training.format_coefficient,
            timeout=GRADING_SECONDS,
        )

    def graded(self, trajectory: Trajectory) -> Graded:
        """Right answer and format, as the environment graded them."""
        metrics = trajectory.transitions[-1].metrics
        return Graded({name: float(bool(metrics[name])) for name in ("correct", "format")})

    async def evaluated(
        self, sampler: tinker.SamplingClient, spec: EvaluationSpec, item: Problem
    ) -> list[Row]:
        """One row, of one request for all samples."""
        sampling = Sampling(sampler, spec.max_tokens, spec.temperature, self.stop)
        response = await sampler.sample_async(
            prompt=self.tokens(item),
            num_samples=spec.samples,
            # without effect at temperature 0; above it items must not share their noise
            sampling_params=sampling.params(stream_seed(0, "evaluation", item.id)),
        )
        if len(response.sequences) != spec.samples:
            raise RunError(
                f"evaluation: item {item.id} got {len(response.sequences) or 'no'} response(s), "
                f"{spec.samples} were asked for; evaluate again"
            )
        tokenizer = self.renderer.tokenizer
        rows = [
            grade(
                item,
                str(tokenizer.decode(list(sequence.tokens), skip_special_tokens=True)),
                spec,
                len(sequence.tokens),
                str(sequence.stop_reason),
            )
            for sequence in response.sequences
        ]
        return [rows[0] if spec.samples == 1 else sampled_row(rows)]

    def _prefix(self) -> list[Message]:
        from tinker_cookbook.recipes.math_rl.math_env import MathEnv

        return MathEnv.standard_fewshot_prefix() if self.training.few_shot == "standard" else []


def problem_adapter(tokenizer: Tokenizer, training: TrainingSpec) -> ProblemAdapter:
    """The adapter of word problems."""
    from tinker_cookbook.renderers import get_renderer

    return ProblemAdapter(get_renderer(training.renderer, tokenizer), training)


def sampled_row(rows: Sequence[ItemRow]) -> ItemRow:
    """One row of an item's several samples."""
    row = rows[0].copy()
    row["n_tokens"] = sum(each["n_tokens"] for each in rows)
    row["correct_S"] = [each["correct"] for each in rows]
    return row


def grade(item: Problem, text: str, spec: EvaluationSpec, n_tokens: int, stop: str) -> ItemRow:
    """One item's row: the answer by the registered rule, compared exactly with the gold number."""
    answer = final_number(text) if spec.answer == "final_number" else boxed_number(text)
    return ItemRow(
        item_id=item.id,
        correct=is_exact(answer, item.gold_value),
        answer=None if answer is None else str(answer),
        gold=item.gold,
        response=text,
        n_tokens=n_tokens,
        stop=stop,
    )
