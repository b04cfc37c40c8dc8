"""Search in the user's own conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from edgechat.base.errors import StoreError
from edgechat.base.text import local_time, one_line
from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool, ToolFailure

MOST_FOUND = 20


@dataclass(frozen=True, slots=True)
class FoundInChats:
    """A place in a conversation with the words that were looked for."""

    title: str
    """Of the conversation."""
    role: str
    """Who said it: user or assistant."""
    snippet: str
    """The words, and what is around them."""
    at: float
    """Seconds since 1970."""


SearchChats = Callable[[str, int], Awaitable[Sequence[FoundInChats]]]
"""Returns where all the words of a text are, the best first, at most so many. Raises StoreError."""


class ChatSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `search_chats`."""

    words: Annotated[str, msgspec.Meta(description="Words that must all occur", max_length=200)]


def past_chats(search: SearchChats) -> BuiltInGroup:
    """Return the tool that searches with `search`."""

    async def run(wanted: ChatSearch) -> str:
        try:
            found = await search(wanted.words, MOST_FOUND)
        except StoreError as error:
            raise ToolFailure(error.message) from error
        return "\n".join(map(_line, found)) or "No conversation has these words."

    description = "Searches the user's earlier conversations with you, and returns the sentences found."
    return BuiltInGroup("chats", BuiltInTool("search_chats", description, ChatSearch, run))


def _line(found: FoundInChats) -> str:
    day = local_time(found.at).date().isoformat()
    return f"{day}, “{one_line(found.title, 80)}”, {found.role}: {one_line(found.snippet, 400)}"
