"""Tools that search the user's conversations and documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from edgechat.base.errors import DocumentError, StoreError
from edgechat.base.text import local_time, one_line
from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool, ToolFailure

MOST_FOUND = 20


@dataclass(frozen=True, slots=True)
class FoundInChats:
    """A place in a conversation where the search words were found."""

    title: str
    """Title of the conversation."""
    role: str
    """Who wrote the text: user or assistant."""
    snippet: str
    """The words found, in context."""
    at: float
    """Seconds since 1970."""


SearchChats = Callable[[str, int], Awaitable[Sequence[FoundInChats]]]
"""A function that takes words and a limit, and returns the places that contain all the words, best first.

Raises StoreError.
"""


class ChatSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `search_chats`."""

    words: Annotated[str, msgspec.Meta(description="Words that must all occur", max_length=200)]


def past_chats(search: SearchChats) -> BuiltInGroup:
    """Return the tool that searches conversations by calling `search`."""

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


SearchDocuments = Callable[[Sequence[str], str], Awaitable[str]]
"""A function that takes the names of collections and a query, and returns text for the model.

Raises DocumentError.
"""
BETWEEN_NAMES = "+"


class DocumentQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `search_documents`."""

    query: Annotated[str, msgspec.Meta(description="A question, or words to look for", max_length=1000)]


def documents_named(names: str, search: SearchDocuments) -> BuiltInGroup:
    """Return the tool that searches documents by calling `search`.

    names: the collections, joined as NAME+NAME.
    """

    async def run(wanted: DocumentQuery) -> str:
        try:
            return await search(names.split(BETWEEN_NAMES), wanted.query)
        except DocumentError as error:
            raise ToolFailure(error.message) from error

    description = (
        f"Finds passages of the user's documents ({names.replace(BETWEEN_NAMES, ', ')}), each with the name "
        "of the file and the place in it: name these in the answer."
    )
    return BuiltInGroup("documents", BuiltInTool("search_documents", description, DocumentQuery, run))
