"""A session's tools: the servers that its chats share, and the user's permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import EdgechatError, SchemaError, ToolError
from edgechat.base.text import one_line
from edgechat.chat.messages import quoted
from edgechat.chat.reply.calls import engine_tool
from edgechat.chat.storage.store import Store
from edgechat.documents import registry as documents
from edgechat.engine.tool_calls.tools import check_tools, parameters_of
from edgechat.tools.builtin.searches import BETWEEN_NAMES, FoundInChats
from edgechat.tools.config import ARGUMENTS
from edgechat.tools.consent import Ask, AskingPermission, ConsentStore, Permission, consents_path
from edgechat.tools.registry import KnownServer, ToolRegistry, ToolSet
from edgechat.tools.tool import ToolSpec

if TYPE_CHECKING:
    from edgechat.documents.library import DocumentLibrary

_PASSAGES_LETTERS = 8000
"""Maximum number of characters in a document search result (about 2,500 tokens)."""


class ChatTools:
    """The tool registry and permissions of a session; `close` stops the servers that were started."""

    def __init__(
        self, store: Callable[[], Awaitable[Store]], documents: Callable[[], DocumentLibrary]
    ) -> None:
        """store: returns the conversations to search. documents: returns the document library to search."""
        self._store = store
        self._documents = documents
        self._registry = ToolRegistry(self._search, self._search_documents)
        self._consents: ConsentStore | None = None

    async def known(self) -> list[KnownServer]:
        """Return the tools that a chat can choose from. Raises SettingsError."""
        return await asyncio.to_thread(self._registry.known)

    async def open(self, chosen: Sequence[str]) -> ToolSet:
        """Return the chosen tools that the engine can use; see `ToolRegistry.open`."""
        found = await self._registry.open(chosen)
        usable, problems = list[ToolSpec](), list[EdgechatError](found.problems)
        for tool in found.tools:
            try:
                parameters_of(engine_tool(tool))
                usable.append(tool)
            except SchemaError as error:
                problems.append(error)
        try:
            check_tools([engine_tool(tool) for tool in usable])
        except SchemaError as error:
            problems.append(
                SchemaError(error.message, hint="Choose fewer tools for this conversation: /tools")
            )
            usable = []
        return ToolSet(tuple(usable), tuple(problems), found.servers)

    async def asking(self, chat_id: str, ask: Ask) -> Permission:
        """Return a Permission that asks the user to approve a chat's calls. Raises StoreError."""
        return AskingPermission(await self.consents(), chat_id, ask)

    async def consents(self) -> ConsentStore:
        """Return the store of permissions, on disk only if the conversations are too. Raises StoreError."""
        if self._consents is None:
            lasting = (await self._store()).lasting
            self._consents = ConsentStore(consents_path() if lasting else None)
        return self._consents

    async def close(self) -> None:
        """Stop the servers."""
        await self._registry.close()

    async def _search(self, words: str, most: int) -> Sequence[FoundInChats]:
        hits = await (await self._store()).search(words, most)
        return [FoundInChats(hit.chat.title, hit.role, hit.snippet, hit.created_at) for hit in hits]

    async def _search_documents(self, names: Sequence[str], query: str) -> str:
        from edgechat.chat.records import Attachment
        from edgechat.documents.library import Room

        library = self._documents()
        await library.refresh(names)
        found = await library.find(names, query, Room(passages=_PASSAGES_LETTERS, whole=0))
        if not found:
            return "These documents contain none of these words."
        # Omit the numbers: only passages attached to a question can be cited as [1] and opened.
        return quoted([Attachment(one.name, one.text) for one in found])


def missing_tool(problem: EdgechatError) -> str:
    """Turn a problem from `ToolSet.problems` into a note."""
    return f"{problem.message} {problem.hint or ''}".strip()


def choice(text: str, known: Sequence[KnownServer]) -> tuple[str, ...]:
    """Parse the tool names that a user typed: 'calculator, files:~/notes'. Raises ToolError, DocumentError.

    The path of a folder can contain spaces but not commas, and is converted to an absolute path.
    """
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    offered = [server.name for server in known]
    for name in names:
        group, _, argument = name.partition(":")
        if name not in offered and (group not in ARGUMENTS or group not in offered):
            raise ToolError(
                f"There are no tools named {one_line(name, 60)!r}.",
                hint=f"Tools: {', '.join(map(one_line, offered))}. To add some: edgechat mcp add",
            )
        if group == "files" and not argument.strip():
            raise ToolError("The files tools need a folder.", hint="For the current one: files:.")
        if group == "documents":
            if not argument:
                hint = "To list them: edgechat docs list. To name several: documents:NAME+NAME"
                raise ToolError("The documents tool needs the name of a document collection.", hint=hint)
            for one in argument.split(BETWEEN_NAMES):
                documents.open_collection(one).close()
    return tuple(dict.fromkeys(map(_with_whole_path, names)))


def _with_whole_path(name: str) -> str:
    group, _, folder = name.partition(":")
    if group != "files" or not folder:
        return name
    with suppress(RuntimeError):  # there is no such ~user
        return f"{group}:{Path(folder.strip()).expanduser().absolute()}"
    return name
