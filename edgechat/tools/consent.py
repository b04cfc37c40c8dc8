"""The user's consent to calls of tools: how it is asked for, and what it is for.

A consent is for a tool as it was described when the user gave it: its `ToolSpec.pin`. Of a tool that has
changed since, it is void, and the next question shows the difference. `never` outlives changes.
`consent_store.py` keeps the answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from edgechat.tools.tool import ToolSpec, shown_arguments

Answer = Literal["once", "chat", "always", "no", "never"]
"""once: this call; chat: this tool in this chat; always: this tool; no: not this call; never: not this tool.

once and no are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that needs the user's consent. Everything in it can be shown as it is, in full."""

    tool: ToolSpec
    arguments: str
    """Indented, with every character that could hide something written out."""
    changed: str = ""
    """How the tool differs from what the user consented to: lines that begin with +, - or a space."""


Ask = Callable[[Question], Awaitable[Answer]]
"""Asks the user; being cancelled means that nobody will answer."""


class Permission(Protocol):
    """Decides about calls."""

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """Return whether to call a tool with these arguments, as the model wrote them."""
        ...


@dataclass(frozen=True, slots=True)
class Standing:
    """What the user's earlier answers say about a tool."""

    allowed: bool | None
    """None: to be asked."""
    changed: str = ""
    """See `Question.changed`."""


class KeepsConsents(Protocol):
    """Keeps answers: see ConsentStore."""

    async def standing(self, tool: ToolSpec, chat_id: str) -> Standing:
        """Return what is known about a tool in a chat."""
        ...

    async def keep(self, tool: ToolSpec, answer: Answer, chat_id: str) -> None:
        """Keep an answer; once and no are not kept. Raises StoreError."""
        ...


class AskingPermission:
    """Asks the user where no earlier answer decides; one question at a time, in the order of the calls."""

    def __init__(self, store: KeepsConsents, chat_id: str, ask: Ask) -> None:
        self._store = store
        self._chat_id = chat_id
        self._ask = ask
        self._asking = asyncio.Lock()

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission. Raises StoreError if the answer cannot be kept; then nothing is called."""
        if tool.harmless:
            return True
        async with self._asking:
            standing = await self._store.standing(tool, self._chat_id)
            if standing.allowed is not None:
                return standing.allowed
            question = Question(tool=tool, arguments=shown_arguments(arguments), changed=standing.changed)
            answer = await self._ask(question)
            await self._store.keep(tool, answer, self._chat_id)
            return answer in ("once", "chat", "always")


class NamedPermission:
    """Permits the tools that a command line names, and nothing else: earlier answers do not count."""

    def __init__(self, names: Collection[str]) -> None:
        """names: SERVER (all of its tools), SERVER/TOOL, or the names that the model uses."""
        self._names = frozenset(names)

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission."""
        names = {tool.server, f"{tool.server}/{tool.name}", tool.model_name}
        return tool.harmless or not names.isdisjoint(self._names)


def difference(old_description: str, old_schema: str, tool: ToolSpec) -> str:
    """Return how a tool has changed: the lines of a diff without its headers, '' if they do not differ."""
    import difflib

    before = [*old_description.splitlines(), *_lines(old_schema)]
    after = [*tool.description.splitlines(), *_lines(tool.schema)]
    return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])


def _lines(schema: str) -> list[str]:
    return json.dumps(json.loads(schema), indent=2, sort_keys=True, ensure_ascii=False).splitlines()
