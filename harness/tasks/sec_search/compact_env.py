"""The compact syntax behind the cookbook's renderer and tool protocols."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import tinker
from tinker_cookbook.renderers.base import (
    Message,
    ParseTermination,
    RenderContext,
    RenderedMessage,
    Renderer,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    ensure_text,
    parse_response_for_stop_token,
)
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.tool_use import ToolInput, ToolResult, simple_tool_result

from harness.tasks.sec_search.compact import VERBS, CompactCall, CompactDesk, parse_call


class CompactRenderer(Renderer):
    """Turns without roles: a line of question or answer, then a reply up to the stop token.

    Words of a question are encoded with their leading space, all else symbol by symbol, so that
    digits and letters are the same tokens wherever they stand. The stop token is the tokenizer's
    end of sequence.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        # a tokenizer call costs more than the few pieces that there are
        self._known: dict[str, list[int]] = {}

    def __reduce__(self) -> tuple[type["CompactRenderer"], tuple[Tokenizer]]:
        return CompactRenderer, (self.tokenizer,)

    @property
    def has_extension_property(self) -> bool:
        """Each prompt extends the one before."""
        return True

    def get_stop_sequences(self) -> list[int]:
        """The end-of-sequence token."""
        return [self.tokenizer.eos_token_id]

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:  # noqa: ARG002  a message looks the same wherever it stands
        """Its text and a new line; a reply ends with the stop token instead."""
        text = ensure_text(message["content"])
        if message["role"] == "assistant":
            tokens = [*self._symbols(text), *self.get_stop_sequences()] if text else []
        elif message["role"] == "user":
            words = (f" {word}" for word in text.split())
            tokens = [token for word in words for token in self._encode(word)]
            tokens += self._encode("\n")
        else:
            tokens = [*self._symbols(text), *self._encode("\n")]
        return RenderedMessage(output=[tinker.EncodedTextChunk(tokens=tokens)])

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        """The reply as one tool call, or as an unreadable one."""
        message, termination = parse_response_for_stop_token(
            response, self.tokenizer, self.get_stop_sequences()[0]
        )
        text = ensure_text(message["content"])
        call = parse_call(text)
        if isinstance(call, str):
            message["unparsed_tool_calls"] = [UnparsedToolCall(raw_text=text, error=call)]
        else:
            arguments = json.dumps({"slots": call.slots, "letters": call.letters})
            body = ToolCall.FunctionBody(name=call.verb, arguments=arguments)
            message["tool_calls"] = [ToolCall(function=body)]
        return message, termination

    def _symbols(self, text: str) -> list[int]:
        return [token for symbol in text for token in self._encode(symbol)]

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = list(self.tokenizer.encode(text, add_special_tokens=False))
        return self._known[text]


@dataclass(frozen=True)
class CompactTool:
    """One verb of the compact syntax. Implements the cookbook's `Tool` protocol."""

    name: str
    desk: CompactDesk

    @property
    def description(self) -> str:
        """Nothing: the compact prompt shows no tools."""
        return ""

    @property
    def parameters_schema(self) -> dict[str, Any]:  # the protocol's own type
        """Nothing: the compact prompt shows no tools."""
        return {}

    def to_spec(self) -> ToolSpec:
        """The name alone."""
        return {"name": self.name, "description": "", "parameters": {}}

    async def run(self, input: ToolInput) -> ToolResult:
        """Serve one call that `CompactRenderer` has parsed."""
        slots, letters = tuple(input.arguments["slots"]), str(input.arguments["letters"])
        answer = await asyncio.to_thread(self.desk.run, CompactCall(self.name, slots, letters))
        return simple_tool_result(answer, name=self.name, should_stop=self.desk.session.finished)


def compact_tools(desk: CompactDesk) -> list[CompactTool]:
    """All verbs, bound to a session's desk."""
    return [CompactTool(verb, desk) for verb in VERBS]
