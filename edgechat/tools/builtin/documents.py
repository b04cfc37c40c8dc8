"""Search in documents that the user names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec

from edgechat.base.errors import DocumentError
from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool, ToolFailure

SearchDocuments = Callable[[Sequence[str], str], Awaitable[str]]
"""Returns what a model is told of the documents of some names for a query. Raises DocumentError."""
BETWEEN_NAMES = "+"


class DocumentQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `search_documents`."""

    query: Annotated[str, msgspec.Meta(description="A question, or words to look for", max_length=1000)]


def documents_named(names: str, search: SearchDocuments) -> BuiltInGroup:
    """Return the tool that searches with `search` in documents, several of them as NAME+NAME."""

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
