"""How tools and their calls are shown, in the app, on the command line and in files."""

from __future__ import annotations

import json
from contextlib import suppress

from edgechat.base.text import one_line
from edgechat.chat.records import ToolUse
from edgechat.tools.tool import ToolSpec, visible_escapes

OUTCOMES = {
    "open": "interrupted",
    "answered": "answered",
    "failed": "failed",
    "refused": "not allowed",
    "stopped": "not carried out",
}
"""What became of a call of a reply that has ended."""
_LONGEST_NAME = 60


def name_of(use: ToolUse) -> str:
    """Return a line with the server and the tool of a call, or the name that the model gave."""
    name = f"{use.server}: {use.tool}" if use.server else use.name
    return one_line(name, 2 * _LONGEST_NAME)


def arguments_in_a_line(use: ToolUse, most: int = 200) -> str:
    """Return the arguments of a call in a line of at most so many characters: 'path="a.py", depth=2'."""
    text = use.arguments
    with suppress(ValueError, RecursionError):
        values = json.loads(use.arguments)
        if isinstance(values, dict):
            text = ", ".join(
                f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
            )
    return one_line(visible_escapes(text[: 4 * most]), most)


def tool_name(tool: ToolSpec) -> str:
    """Return a line with the server and the name of a tool."""
    return f"{one_line(tool.server, _LONGEST_NAME)}: {one_line(tool.name, _LONGEST_NAME)}"


def told_in_words(model: str) -> str:
    """Return the sentence for a model whose template has no tools, but that is to call some."""
    name = one_line(model, _LONGEST_NAME)
    return f"The chat template of {name} has no tools: it is told about them in words, and may call none."


def hints(tool: ToolSpec) -> str:
    """Return what is said about the effects of a tool, by those who made it."""
    if tool.built_in:
        return "A tool of edgechat that changes nothing." if tool.read_only else "A tool of edgechat."
    server = one_line(tool.server, _LONGEST_NAME)
    if tool.destructive:
        return f"According to {server}, it may delete or overwrite something."
    if tool.read_only:
        return f"According to {server}, it changes nothing."
    return f"{server} does not say whether it changes anything."
