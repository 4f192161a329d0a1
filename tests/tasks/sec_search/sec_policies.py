"""Scripted policies: replies as texts or tokens, played through the real renderers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory
from transformers import PreTrainedTokenizerFast

import harness.embedded
from harness.tasks.sec_search import Query, SearchTask
from harness.tasks.sec_search.compact_env import CompactRenderer
from harness.tasks.sec_search.env import SearchEnv, search_env
from harness.tasks.sec_search.limits import EpisodeLimits

MODEL = Path(harness.embedded.__file__).parent / "model"
# the nano tokenizer spells most of a prompt in bytes, so the bound of 8,192 is scaled to it
ROOMY = EpisodeLimits(max_tokens=60_000, max_generation_tokens=3_000)

# each tries to make a call and fails, in another way
BROKEN_REPLIES = [
    "</think>\n\n<tool_call>\n<function=curate>\n<parameter=document_ids>\n[",
    "</think>\n\n<tool_call>\n{bad json}\n</tool_call>",
    "</think>\n\n<tool_call>\n<function=>\n</function>\n</tool_call>",
]


def tokenizer() -> PreTrainedTokenizerFast:
    """The nano model's tokenizer: control tokens, <think> tokens and bytes."""
    # these prompts are longer than the nano model is; nothing is run through it here
    return PreTrainedTokenizerFast.from_pretrained(MODEL, model_max_length=10**6)


def qwen_renderer() -> Renderer:
    """The renderer of the registered card's model, on the nano tokenizer."""
    return get_renderer("qwen3_5", tokenizer())


def compact_renderer() -> CompactRenderer:
    """The compact syntax on the nano tokenizer."""
    return CompactRenderer(tokenizer())


class Scripted(TokenCompleter):
    """Plays replies in order. Log-probs are all different, so that a shifted one is noticed.

    A text gets the stop token at its end; a list of tokens is played as it is, and `cut` plays its
    reply as one that ran into the token limit.
    """

    def __init__(
        self, renderer: Renderer, replies: Sequence[str | list[int]], cut: int | None = None
    ) -> None:
        self._renderer = renderer
        self._replies = list(replies)
        self._cut = cut
        self.prompts: list[list[int]] = []
        self.logprobs: list[list[float]] = []

    async def __call__(self, model_input, stop, *, max_tokens=None):  # noqa: ARG002  scripted
        """The next reply."""
        turn = len(self.prompts)
        self.prompts.append(model_input.to_ints())
        reply = self._replies[turn]
        tokens = reply
        if isinstance(reply, str):
            tokens = self._renderer.tokenizer.encode(reply, add_special_tokens=False)
            tokens = tokens if turn == self._cut else [*tokens, stop[0]]
        self.logprobs.append([-(turn + 1) - i / 10_000 for i in range(len(tokens))])
        return TokensWithLogprobs(
            list(tokens), list(self.logprobs[-1]), "length" if turn == self._cut else "stop"
        )


def play(
    task: SearchTask,
    query: Query,
    replies: Sequence[str | list[int]],
    *,
    renderer: Renderer,
    limits: EpisodeLimits = ROOMY,
    cut: int | None = None,
) -> tuple[Trajectory, SearchEnv, Scripted]:
    """One episode of a scripted policy."""
    syntax = "compact" if isinstance(renderer, CompactRenderer) else "json"
    env = search_env(query, task.retriever, renderer, limits, syntax)
    policy = Scripted(renderer, replies, cut)
    return asyncio.run(do_single_rollout(policy, env)), env, policy


def reward(trajectory: Trajectory) -> float:
    """The reward of a whole trajectory."""
    return sum(transition.reward for transition in trajectory.transitions)


def call(name: str, thought: str = "\n", **arguments: object) -> str:
    """A reply with one tool call in the form that the Qwen3.5 template writes."""
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    block = f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
    return f"{thought}</think>\n\n{block}"


def ids(chunks: Sequence[str]) -> str:
    """Chunk ids as a JSON list."""
    return "[" + ", ".join(f'"{chunk}"' for chunk in chunks) + "]"


def oracle(task: SearchTask, query: Query) -> list[str]:
    """Look each gold chunk up by its own words, curate one of each fact, finish."""
    gold = [fact.chunk_ids[0] for fact in query.facts]
    chunks = [task.retriever.get(chunk_id) for chunk_id in gold]
    looks = [
        call("bm25_search", query=f"{c.title} {c.text}"[:990].replace("\n", " "), k=5)
        for c in chunks
        if c is not None
    ]
    return [*looks, call("curate", document_ids=ids(gold)), call("finish")]
