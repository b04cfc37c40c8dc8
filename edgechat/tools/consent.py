"""The user's consent to calls of tools: how it is asked for, what it is for, and where it is kept.

A consent is for a tool as it was described when the user gave it: its `ToolSpec.pin`. Of a tool that has
changed since, it is void, and the next question shows the difference. `never` outlives changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from edgechat.tools.tool import ToolSpec

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


@dataclass(frozen=True, slots=True)
class GivenConsent:
    """An answer that is kept."""

    server: str
    tool: str
    answer: Literal["chat", "always", "never"]
    chat_id: str | None
    """Of an answer for one chat."""
    at: float
    """Seconds since 1970."""


class ConsentStore:
    """The answers that are kept, in `consents.json` of edgechat's data folder or in memory.

    Programs may share the file: it is read before each answer and locked while it is changed. A file that is
    damaged, or that others may write to, counts as empty.
    """

    def __init__(self, path: Path | None) -> None:
        """path: see `consents_path`; None keeps them in memory, for chats that are not stored either."""

    async def standing(self, tool: ToolSpec, chat_id: str) -> Standing:
        """Return what is known about a tool in a chat."""
        raise NotImplementedError

    async def keep(self, tool: ToolSpec, answer: Answer, chat_id: str) -> None:
        """Keep an answer; once and no need none. Raises StoreError."""
        raise NotImplementedError

    async def given(self) -> Sequence[GivenConsent]:
        """Return the answers that are kept, by server and tool."""
        raise NotImplementedError

    async def withdraw(self, server: str, tool: str | None = None) -> int:
        """Forget the answers about a tool, or about all of a server; return how many. Raises StoreError."""
        raise NotImplementedError

    async def forget_chats(self, chat_ids: Collection[str]) -> None:
        """Forget the answers for chats that are deleted. Raises StoreError."""
        raise NotImplementedError


class AskingPermission:
    """Asks the user where no earlier answer decides; one question at a time, in the order of the calls."""

    def __init__(self, store: ConsentStore, chat_id: str, ask: Ask) -> None: ...

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission. Raises StoreError if the answer cannot be kept; then nothing is called."""
        raise NotImplementedError


class NamedPermission:
    """Permits the tools that a command line names, and nothing else: earlier answers do not count."""

    def __init__(self, names: Collection[str]) -> None:
        """names: SERVER (all of its tools), SERVER/TOOL, or the names that the model uses."""

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission."""
        raise NotImplementedError


def consents_path() -> Path:
    """Return the path of the file, which need not exist."""
    raise NotImplementedError
