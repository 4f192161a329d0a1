"""The session's six tools in the cookbook's protocol, with JSON arguments and JSON answers."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from tinker_cookbook.renderers.base import ToolSpec
from tinker_cookbook.tool_use import ToolInput, ToolResult, simple_tool_result

from harness.tasks.sec_search.session import Reply, SearchSession, shown

Count = Annotated[int | None, Field(description="How many results to show.")]


class _Search(BaseModel):
    query: str = Field(description="Words that the chunk should hold.")
    k: Count = None


class _Grep(BaseModel):
    pattern: str = Field(description="Regular expression of up to 160 characters.")
    case_sensitive: bool = False
    k: Count = None


class _Read(BaseModel):
    document_id: str = Field(description="The id of a chunk from a result.")


class _Ids(BaseModel):
    document_ids: list[str] = Field(description="Ids of chunks from results.")


class _Nothing(BaseModel):
    pass


@dataclass(frozen=True)
class SessionTool:
    """One tool of one session. Arguments that don't fit are answered, never raised.

    Implements the cookbook's `Tool` protocol.
    """

    name: str
    description: str
    arguments: type[BaseModel]
    call: Callable[..., Reply]
    session: SearchSession

    @property
    def parameters_schema(self) -> dict[str, Any]:  # the protocol's own type
        """JSON schema of the arguments."""
        return self.arguments.model_json_schema()

    def to_spec(self) -> ToolSpec:
        """What the renderer shows of the tool."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters_schema,
        }

    async def run(self, input: ToolInput) -> ToolResult:
        """Answer one call; searching leaves the event loop free."""
        try:
            arguments = self.arguments.model_validate(input.arguments).model_dump()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = shown(".".join(map(str, first["loc"])))
            self.session.counts["errors"] += 1
            reply: Reply = {"error": "bad_arguments", "message": f"{place}: {first['msg']}"}
        else:
            reply = await asyncio.to_thread(self.call, **arguments)
        return simple_tool_result(
            encoded(reply),
            call_id=input.call_id or "",
            name=self.name,
            should_stop=self.session.finished,
        )


def session_tools(session: SearchSession) -> list[SessionTool]:
    """The six tools, bound to a session."""
    limits = session.limits
    listed: list[tuple[str, str, type[BaseModel], Callable[..., Reply]]] = [
        (
            "bm25_search",
            f"Search the filing chunks by words (BM25). Shows {limits.default_k} results, up to "
            f"{limits.max_k} with k.",
            _Search,
            session.search,
        ),
        (
            "grep_corpus",
            "Search by regular expression among the chunks that hold its literal words.",
            _Grep,
            session.grep,
        ),
        ("read_document", "Read a chunk that a result has shown.", _Read, session.read),
        (
            "curate",
            f"Add chunks to the curated set, at most {limits.max_curated} in all.",
            _Ids,
            session.curate,
        ),
        ("drop_curated", "Take chunks out of the curated set.", _Ids, session.drop),
        ("finish", "End the search; the curated set is final.", _Nothing, session.finish),
    ]
    return [SessionTool(*each, session) for each in listed]


def encoded(reply: Reply) -> str:
    """The answer as JSON, in which no text can pass for one of a renderer's control tokens."""
    return json.dumps(reply, ensure_ascii=False).replace("<", "\\u003c")
