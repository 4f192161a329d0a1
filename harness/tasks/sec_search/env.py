"""The environment: the cookbook's tool-use classes, with token-in, token-out prompts.

A stock prompt is rendered anew each turn from parsed messages, which need not give back the tokens
that were sampled. Here the next prompt is the last one, the sampled tokens as they are, and the
tool results: log-probs always belong to tokens that are in the prompt, and a whole episode is
one sequence.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import tinker
from tinker_cookbook.exceptions import TinkerCookbookError
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageStepResult
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    Logs,
    StepResult,
    StopReason,
)
from tinker_cookbook.tool_use import AgentToolMessageEnv, Tool

from harness.errors import HarnessError, RunError
from harness.tasks.sec_search.compact import CompactDesk
from harness.tasks.sec_search.compact_env import compact_tools
from harness.tasks.sec_search.index import Retriever
from harness.tasks.sec_search.limits import EpisodeLimits
from harness.tasks.sec_search.metrics import (
    Progress,
    episode_metrics,
    episode_reward,
    turn_metrics,
)
from harness.tasks.sec_search.prompt import SYSTEM_PROMPT
from harness.tasks.sec_search.records import Query
from harness.tasks.sec_search.session import SearchSession
from harness.tasks.sec_search.tools import session_tools

Syntax = Literal["json", "compact"]

CURATED = "curated"
"""Under which an episode's last turn logs the ids that it curated, as a JSON list."""

_BROKEN = frozenset({StopReason.MAX_TOKENS, StopReason.PARSE_ERROR})


@dataclass
class SearchMessageEnv(AgentToolMessageEnv):
    """The cookbook's tool-using agent, with per-turn metrics of the session."""

    session: SearchSession = field(kw_only=True)

    async def step(self, message: Message) -> MessageStepResult:
        """Run the reply's calls in order, and count what they did."""
        before = Progress.of(self.session)
        calls, unread = message.get("tool_calls") or [], message.get("unparsed_tool_calls") or []
        known = {tool.name for tool in self.tools}
        unknown = sum(call.function.name not in known for call in calls)
        self.session.counts["errors"] += unknown + len(unread)
        result = await super().step(message)
        off_format = not calls or bool(unread)
        result.metrics.update(turn_metrics(before, Progress.of(self.session), off_format))
        return result


class SearchEnv(EnvFromMessageEnv):
    """One episode. However it ends, the curated set is graded; see `EpisodeLimits`.

    Single use. `session` is the episode's own.
    """

    def __init__(
        self,
        query: Query,
        renderer: Renderer,
        message_env: SearchMessageEnv,
        limits: EpisodeLimits,
    ) -> None:
        super().__init__(renderer, message_env)
        self.query = query
        self.session = message_env.session
        self._agent = message_env
        self._limits = limits
        self._stop = renderer.get_stop_sequences()
        self._tokens: list[int] = []
        self._turns = 0

    @property
    def opening(self) -> list[int]:
        """The rendered question, as tokens."""
        return self.renderer.build_generation_prompt(self._agent.initial_messages).to_ints()

    async def initial_observation(
        self,
    ) -> tuple[tinker.ModelInput, list[str] | list[int]] | InitialObservationOverflow:
        """The rendered question; an overflow, worth -0.2, if no reply would fit behind it."""
        messages = await self._agent.initial_observation()
        self._tokens = self.renderer.build_generation_prompt(messages).to_ints()
        if self._overflows(self._tokens):
            ended = self._end(StopReason.MAX_TOKENS, {})
            return InitialObservationOverflow(reward=ended.reward, metrics=ended.metrics)
        return tinker.ModelInput.from_ints(self._tokens), self._stop

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Parse the sampled tokens, run their calls, and append the results.

        Raises:
            RunError: the sampler put tokens behind the stop token, or the renderer can't be used
                token-in, token-out.
        """
        self._turns += 1
        before = Progress.of(self.session)
        broken = turn_metrics(before, before, off_format=True)
        if (extra or {}).get("stop_reason") == "length":
            return self._end(StopReason.MAX_TOKENS, broken)
        try:
            message, termination = self.renderer.parse_response(action)
        except TinkerCookbookError:
            raise
        except (ValueError, RecursionError):
            # JSON of thousands of brackets or digits passes the renderers' own guards
            return self._end(StopReason.PARSE_ERROR, broken)
        if not termination.is_clean:
            return self._end(StopReason.PARSE_ERROR, broken)
        try:
            result = await self._agent.step(message)
        except HarnessError:
            raise
        except (ValueError, RecursionError):
            # the cookbook reads arguments of some renderers here only
            broken = turn_metrics(before, Progress.of(self.session), off_format=True)
            return self._end(StopReason.PARSE_ERROR, broken)
        if result.episode_done:
            return self._end(_stop_reason(result.metrics), result.metrics, result.logs)
        answers = _after_last_reply(result.next_messages)
        following = await asyncio.to_thread(following_tokens, self.renderer, answers)
        tokens = _joined(self._tokens, action, following, self._stop)
        if self._overflows(tokens):
            return self._end(StopReason.CONTEXT_OVERFLOW, result.metrics, result.logs)
        self._tokens = tokens
        return StepResult(
            reward=0.0,
            episode_done=False,
            next_observation=tinker.ModelInput.from_ints(tokens),
            next_stop_condition=self._stop,
            metrics=dict(result.metrics),
            logs=result.logs,
        )

    def _overflows(self, tokens: Sequence[int]) -> bool:
        return len(tokens) + self._limits.max_generation_tokens > self._limits.max_tokens

    def _end(
        self, reason: str, metrics: Mapping[str, float], logs: Logs | None = None
    ) -> StepResult:
        """Grade: the one place where an episode gets its reward."""
        floored = reason in _BROKEN and self._limits.broken_reply == "floor"
        kept = {k: v for k, v in metrics.items() if not k.startswith(STOP_METRIC_PREFIX)}
        return StepResult(
            reward=episode_reward(self.session, self.query, floored),
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self._stop,
            metrics={
                **kept,
                **episode_metrics(self.session, self.query, self._turns),
                f"{STOP_METRIC_PREFIX}{reason}": 1.0,
            },
            logs={**(logs or {}), CURATED: json.dumps(self.session.curated)},
        )


@dataclass(frozen=True)
class SearchGroupBuilder(EnvGroupBuilder):
    """`size` independent sessions on one question."""

    query: Query
    retriever: Retriever
    renderer: Renderer
    limits: EpisodeLimits
    syntax: Syntax
    size: int

    async def make_envs(self) -> Sequence[Env]:
        """Fresh environments, each with a session of its own."""
        return [
            search_env(self.query, self.retriever, self.renderer, self.limits, self.syntax)
            for _ in range(self.size)
        ]


def search_env(
    query: Query, retriever: Retriever, renderer: Renderer, limits: EpisodeLimits, syntax: Syntax
) -> SearchEnv:
    """One episode's environment, in JSON tool calls or in the compact syntax."""
    session = SearchSession(retriever, limits.session)
    tools: list[Tool]
    if syntax == "compact":
        desk = CompactDesk(session, retriever, query.text)
        tools = list(compact_tools(desk))
        messages = [Message(role="user", content=desk.prompt)]
    else:
        tools = list(session_tools(session))
        shown = SYSTEM_PROMPT.format(max_turns=limits.max_turns)
        specs = [tool.to_spec() for tool in tools]
        messages = renderer.create_conversation_prefix_with_tools(specs, shown)
        messages.append(Message(role="user", content=query.text))
    agent = SearchMessageEnv(
        tools=tools,
        initial_messages=messages,
        max_turns=limits.max_turns,
        reward_fn=_ungraded,
        # calls of one reply see each other's effects, in the order in which they were written
        tool_execution="sequential",
        session=session,
    )
    return SearchEnv(query, renderer, agent, limits)


def following_tokens(renderer: Renderer, answers: Sequence[Message]) -> list[int]:
    """What stands between a reply's stop token and the next reply: results and headers.

    It is what two conversations have in common behind replies that differ, so it needs no
    renderer's internals. The first token of that is the stop token, which was sampled.

    Raises:
        RunError: the renderer ends a reply with something else than one stop token.
    """
    question = Message(role="user", content="?")
    one, other = (
        renderer.build_generation_prompt(
            [question, Message(role="assistant", content=reply), *answers]
        ).to_ints()
        for reply in ("a", "b")
    )
    shared = 0
    while shared < min(len(one), len(other)) and one[-1 - shared] == other[-1 - shared]:
        shared += 1
    following = one[len(one) - shared :]
    if not following or following[0] not in renderer.get_stop_sequences():
        raise RunError(
            f"{type(renderer).__name__}: a rendered reply does not end with one of the stop tokens "
            f"{renderer.get_stop_sequences()}; use a renderer that samples the end of its turns"
        )
    return following[1:]


async def _ungraded(_history: list[Message]) -> tuple[float, dict[str, float]]:
    """Nothing: `SearchEnv` grades, since it sees the endings that this hook is not called for."""
    return 0.0, {}


def _stop_reason(metrics: dict[str, float]) -> str:
    (reason,) = (k for k in metrics if k.startswith(STOP_METRIC_PREFIX))
    return reason.removeprefix(STOP_METRIC_PREFIX)


def _after_last_reply(messages: Sequence[Message]) -> list[Message]:
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return list(messages[last + 1 :])


def _joined(
    prompt: list[int], action: Action, following: list[int], stop: Sequence[str] | Sequence[int]
) -> list[int]:
    if action[-1] not in stop:
        raise RunError(
            f"the sampled reply ends with token {action[-1]}, not with one of the stop tokens "
            f"{list(stop)}; use a service that stops there"
        )
    return [*prompt, *action, *following]
