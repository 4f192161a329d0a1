"""The search agent: episodes of several turns, graded by what was curated at their end."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinker_cookbook.rl.types import STOP_METRIC_PREFIX, StopReason

from harness.cards import Experiment
from harness.cards.registration import EvaluationSpec
from harness.errors import CardError
from harness.records import EpisodeRow, Row
from harness.tasks.sec_search import Query, SearchTask, SessionLimits
from harness.tasks.sec_search.compact_env import CompactRenderer
from harness.tasks.sec_search.env import CURATED, SearchEnv, SearchGroupBuilder, Syntax, search_env
from harness.tasks.sec_search.index import Retriever
from harness.tasks.sec_search.limits import EpisodeLimits
from harness.tasks.sec_search.metrics import FIGURES
from harness.training.completers import Sampling
from harness.training.rollouts import sample_episodes
from harness.training.streams import stream_seed
from harness.training.task_adapter import Graded, TaskAdapter

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.renderers import Renderer
    from tinker_cookbook.rl.types import Trajectory
    from tinker_cookbook.tokenizer_utils import Tokenizer

COMPACT_RENDERER = "harness/compact"
"""Name under which a registration asks for the compact syntax's renderer."""

ENDINGS = (
    StopReason.TOOL_STOPPED,
    StopReason.COMPLETED,
    StopReason.MAX_TURNS,
    StopReason.MAX_TOKENS,
    StopReason.CONTEXT_OVERFLOW,
    StopReason.PARSE_ERROR,
)
"""How an episode can end: by finish, by a reply without a call, at a limit, or broken."""


@dataclass(frozen=True)
class SearchAdapter(TaskAdapter[Query]):
    """Sessions on one index; `limits` are of a training episode."""

    retriever: Retriever
    limits: EpisodeLimits
    syntax: Syntax

    multi_turn = True

    def tokens(self, item: Query) -> tinker.ModelInput:
        """The rendered question, with instructions and tools where the syntax shows them."""
        import tinker

        return tinker.ModelInput.from_ints(self._env(item).opening)

    def text(self, item: Query) -> list[int]:
        """The rendered question and what its facts say."""
        said = " ".join(fact.text for fact in item.facts)
        facts = self.renderer.tokenizer.encode(said, add_special_tokens=False)
        return [*self._env(item).opening, *(int(token) for token in facts)]

    def group(self, item: Query, size: int) -> SearchGroupBuilder:
        """`size` independent sessions on one question."""
        return SearchGroupBuilder(
            item, self.retriever, self.renderer, self.limits, self.syntax, size
        )

    def stock(self, item: Query, max_tokens: int) -> SearchEnv:
        """One session on the question."""
        limits = replace(self.limits, max_generation_tokens=max_tokens)
        return search_env(item, self.retriever, self.renderer, limits, self.syntax)

    def graded(self, trajectory: Trajectory) -> Graded:
        """Figures of the episode; it is correct if every fact was found and nothing else curated.

        Beside `correct`, `format` and those of `episode_metrics`: `off_format`, whether any turn
        had a call that could not be read, and `stop=<reason>`, 1 for the reason why the episode
        ended.
        """
        found = figures(trajectory)
        graded = {"correct": found["f4"] == 1.0, "format": found["off_format"] == 0.0}
        scores = {**{name: float(flag) for name, flag in graded.items()}, **found}
        return Graded(scores, answer=list(curated(trajectory)))

    async def evaluated(
        self, sampler: tinker.SamplingClient, spec: EvaluationSpec, item: Query
    ) -> list[Row]:
        """A row a draw; draws of an item are sampled at the same time."""
        limits = replace(self.limits, max_generation_tokens=spec.max_tokens)
        group = await sample_episodes(
            replace(self, limits=limits).group(item, spec.samples),
            Sampling(sampler, spec.max_tokens, spec.temperature, self.stop),
            stream_seed(0, "evaluation", item.id),
            f"evaluation: item {item.id}",
        )
        rewards = group.get_total_rewards()
        return [
            episode_row(item.id, draw, trajectory, reward)
            for draw, (trajectory, reward) in enumerate(
                zip(group.trajectories_G, rewards, strict=True)
            )
        ]

    def _env(self, item: Query) -> SearchEnv:
        return search_env(item, self.retriever, self.renderer, self.limits, self.syntax)


def figures(trajectory: Trajectory) -> dict[str, float]:
    """What the environment found of an episode: at its end, in any turn, and why it ended."""
    turns = [transition.metrics for transition in trajectory.transitions]
    ended = {
        f"stop={reason}": float(turns[-1].get(f"{STOP_METRIC_PREFIX}{reason}", 0.0))
        for reason in ENDINGS
    }
    # the cookbook's environment leaves figures of its own beside these, not in every episode
    found = {name: float(turns[-1][name]) for name in FIGURES}
    off_format = max(float(turn["turn/off_format"]) for turn in turns)
    return {**found, "off_format": off_format, **ended}


def curated(trajectory: Trajectory) -> list[str]:
    """The chunks that an episode chose."""
    chosen: list[str] = json.loads(str(trajectory.transitions[-1].logs[CURATED]))
    return chosen


def episode_row(item_id: str, draw: int, trajectory: Trajectory, reward: float) -> EpisodeRow:
    """One draw's row."""
    return EpisodeRow(
        item_id=item_id,
        draw=draw,
        stop=str(trajectory.stop_reason),
        n_tokens=sum(len(transition.ac.tokens) for transition in trajectory.transitions),
        curated=curated(trajectory),
        scores={"reward": reward, **figures(trajectory)},
    )


def search_adapter(tokenizer: Tokenizer, experiment: Experiment, task: SearchTask) -> SearchAdapter:
    """The adapter of the registered searches.

    Raises:
        CardError: the registration has no settings of the task.
    """
    registration = experiment.registration
    spec = registration.search
    if spec is None:
        raise CardError(f"{experiment.id}: no `search`; register the task's settings")
    return SearchAdapter(
        search_renderer(registration.training.renderer, tokenizer),
        registration.training,
        task.retriever,
        EpisodeLimits(
            max_turns=spec.max_turns,
            max_tokens=experiment.card.max_seq_len,
            max_generation_tokens=registration.training.max_tokens,
            broken_reply=spec.broken_reply,
            session=SessionLimits(**spec.session.model_dump()),
        ),
        spec.syntax,
    )


def search_renderer(name: str, tokenizer: Tokenizer) -> Renderer:
    """The cookbook's renderer of that name, or that of the compact syntax."""
    from tinker_cookbook.renderers import get_renderer

    return CompactRenderer(tokenizer) if name == COMPACT_RENDERER else get_renderer(name, tokenizer)
