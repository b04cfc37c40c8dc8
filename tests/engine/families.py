"""Templates of model families, and requests for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from edgechat.engine.prompt.template import CHATML, ChatTemplate
from edgechat.engine.reply.reply import Reply
from edgechat.engine.tool_calls.formats import Format, format_of
from edgechat.engine.tool_calls.splitter import ArgumentsText, Splitter
from edgechat.engine.tool_calls.tools import kinds_of
from edgechat.engine.types import Tool, ToolCall, ToolCallArguments, ToolCallBegun

_FOLDER = Path(__file__).parent / "templates" / "calls"
SOURCES = {path.stem: path.read_text() for path in sorted(_FOLDER.glob("*.jinja"))} | {"generic": CHATML}
"""A template of each family, by the name of its format."""

WEATHER = Tool(
    "get_weather",
    "Tells the weather.",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "hours": {"type": "array", "items": {"type": "number"}},
                "more": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": ["wind"]},
            },
            "required": ["city"],
        }
    ),
)
NOW = Tool("now", "Tells the time.")
TOOLS = (WEATHER, NOW)


def family(name: str) -> Format:
    """Return a format, as detected from its template."""
    return format_of(SOURCES[name])


def reply_of(
    name: str, tools: tuple[Tool, ...] = TOOLS, stop: tuple[str, ...] = (), **options: bool
) -> Reply:
    """Return an empty reply by a model of the family, set up to find tool calls."""
    template = ChatTemplate(SOURCES[name])
    return Reply(stop, template.marks, calls=Splitter(template.calls, kinds_of(tools)), **options)


def joined(shown: Sequence[object]) -> list[ToolCall]:
    """Return the complete calls from what a reply shows, or from an engine's events."""
    calls: list[ToolCall] = []
    for one in shown:
        if isinstance(one, ToolCall | ToolCallBegun):
            call = one.call if isinstance(one, ToolCallBegun) else one
            assert call.arguments == ""
            calls.append(call)
        elif isinstance(one, ArgumentsText | ToolCallArguments):
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + one.text)
    return calls


def split(reply: Reply, text: str, cuts: list[int] | None = None) -> tuple[str, str, list[ToolCall]]:
    """Return the answer, thinking and calls in a text that arrives in pieces."""
    raw = text.encode("utf-8", "surrogatepass")
    edges = sorted({0, len(raw), *(cuts or ())})
    shown = []
    for start, stop in pairwise(edges):
        if not reply.stopped:
            shown += reply.feed(raw[start:stop])
    shown += reply.finish()
    calls = joined(shown)
    said = [one for one in shown if not isinstance(one, ToolCall | ArgumentsText)]
    answer = "".join(part for part, thinking in said if not thinking)
    return answer, "".join(part for part, thinking in said if thinking), calls
