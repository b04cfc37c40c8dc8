"""Documents over MCP, on stdin and stdout: a search tool, and files as resources.

The server is read-only, and reads only what `edgechat docs` has indexed. A URI is looked up among the files
in a collection, and is never used as a path.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, suppress
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta

from edgechat import __version__
from edgechat.base.errors import DocumentError
from edgechat.chat.attachments import attached_passage
from edgechat.chat.messages import quoted
from edgechat.documents import registry
from edgechat.documents.citations import PassageSource
from edgechat.documents.collection import File
from edgechat.documents.library import Given, text_of
from edgechat.server.documents import ALL, QUESTION_LETTERS, AskedDocuments, RequestDocuments
from edgechat.server.refusal import Refusal
from edgechat.tools.builtin.group import schema_of

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server import ServerRequestContext

    Context = ServerRequestContext[Any]

_SCHEME = "edgechat://docs/"
_LONGEST_LINE = 1 << 20
"""Maximum size of a message in bytes. A longer one ends the connection."""
_MOST_WAITING = 16
"""Maximum number of messages to read ahead."""
_PASSAGES_BYTES = 12_000
"""Maximum size of the results of one search, in bytes."""
_MOST_LISTED = 500
"""Maximum number of files to list. Files in larger collections can only be searched or read by URI."""
_MOST_NUMBERED = 10_000
"""Maximum number of passages whose citation numbers are stored. At the limit, all numbers are discarded."""
_MOST_LETTERS = 1 << 20
"""Maximum number of characters returned when a file is read as a resource."""
_CUT = "\n\n[edgechat left out the rest of this file because it is too long.]"


class SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `search_documents`."""

    query: Annotated[
        str, Meta(description="A question, or words to look for", min_length=1, max_length=QUESTION_LETTERS)
    ]
    collection: Annotated[
        str, Meta(description="Search only in the documents of this name", max_length=64)
    ] = ""


class OfferedDocuments:
    """The collections offered to other programs, independently of the protocol. Bound to one event loop."""

    def __init__(self, allowed: Sequence[str]) -> None:
        """allowed: names of collections, or empty for all of them."""
        self._documents = RequestDocuments(allowed or (ALL,))
        self._numbers: dict[PassageSource, int] = {}
        """The number assigned to each passage returned so far, for use in citations."""
        self._next = count(1)

    async def close(self) -> None:
        """Close the collections."""
        await self._documents.close()

    async def names(self) -> list[str]:
        """Return the names of the collections."""
        return await self._documents.names()

    async def _usable(self) -> list[str]:
        """Return the readable collections. If there are none, return all of them: reading one reports why."""
        return [one.name for one in await self._documents.usable()] or await self.names()

    async def search(self, asked: SearchArguments) -> str:
        """Return the best passages for a query, quoted, with the URIs of their files. Raises Refusal."""
        names = [asked.collection] if asked.collection else await self._usable()
        if not names:
            raise Refusal("There are no documents yet. To add some: edgechat docs add FOLDER")
        await self._documents.prepare(AskedDocuments(tuple(names)))
        found = list(map(self._numbered, await self._documents.passages(names, asked.query, _PASSAGES_BYTES)))
        if not found:
            return "These documents contain none of these words."
        uris = "\n".join(dict.fromkeys(_uri(one.source.collection, one.document) for one in found))
        return (
            f"{quoted(list(map(attached_passage, found)))}\n\nThe full files, available as resources:\n{uris}"
        )

    def _numbered(self, one: Given) -> Given:
        """Return a passage with the number it was given before, or with the next free number."""
        place = msgspec.structs.replace(one.source, number=0)
        if (number := self._numbers.get(place)) is None:
            if len(self._numbers) >= _MOST_NUMBERED:
                self._numbers.clear()
            number = self._numbers[place] = next(self._next)
        return msgspec.structs.replace(one, source=msgspec.structs.replace(place, number=number))

    async def page(self, cursor: str | None) -> tuple[list[tuple[str, File]], str | None]:
        """Return a page (the files in one collection, with URIs) and the next cursor. Raises Refusal."""
        names = await self._usable()
        if not names and cursor is None:
            return [], None
        name = names[0] if cursor is None else cursor
        await self._documents.prepare(AskedDocuments((name,), "cursor"))
        files = await asyncio.to_thread(_files, name)
        after = [one for one in names if one > name]
        listed = files if len(files) <= _MOST_LISTED else []
        return [(_uri(name, file.name), file) for file in listed], after[0] if after else None

    async def read(self, uri: str) -> list[str]:
        """Return the indexed text of a file, or of all files with the same name. Raises Refusal."""
        collection, _, name = uri[:QUESTION_LETTERS].removeprefix(_SCHEME).partition("/")
        collection, name = unquote(collection), unquote(name)
        if uri.startswith(_SCHEME):
            await self._documents.prepare(AskedDocuments((collection,), "uri"))
            if texts := await asyncio.to_thread(_texts, collection, name):
                return texts
        raise Refusal(f"There is no such file. URIs have the form {_SCHEME}COLLECTION/FILE.", param="uri")


def _uri(collection: str, name: str) -> str:
    return f"{_SCHEME}{quote(collection)}/{quote(name)}"


def _files(name: str) -> list[File]:
    with closing(registry.open_collection(name)) as collection:
        return [file for file in collection.files() if file.n_bytes]


def _texts(name: str, file_name: str) -> list[str]:
    with closing(registry.open_collection(name)) as collection:
        same = [file for file in collection.files() if file.n_bytes and file.name == file_name]
        texts = [text_of(collection.document(file)) for file in same]
    return [text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + _CUT for text in texts]


async def serve_documents(allowed: Sequence[str]) -> None:
    """Serve collections on stdin and stdout until stdin ends. Requires the `mcp` package."""
    import mcp_types as types
    from mcp import MCPError
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    documents = OfferedDocuments(allowed)

    def refused(error: Refusal | DocumentError) -> MCPError:
        return MCPError(types.INVALID_PARAMS, error.message)

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        there = ", ".join((await documents.names())[:50])
        tool = types.Tool(
            name="search_documents",
            description="Finds passages of the user's documents, each with a number, the name of the file "
            f"and the place in it. Collections: {there or 'none yet'}.",
            input_schema=schema_of(SearchArguments),
            annotations=types.ToolAnnotations(
                title="Search documents", read_only_hint=True, open_world_hint=False
            ),
        )
        return types.ListToolsResult(tools=[tool])

    async def call_tool(_: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name != "search_documents":
            raise MCPError(types.INVALID_PARAMS, "There is no such tool.")
        failed = False
        try:
            text = await documents.search(msgspec.convert(params.arguments or {}, SearchArguments))
        except msgspec.ValidationError as error:
            text, failed = f"Wrong arguments: {error}.", True
        except (Refusal, DocumentError) as error:
            text, failed = error.message, True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    async def list_resources(
        _: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        try:
            files, after = await documents.page(params.cursor if params is not None else None)
        except (Refusal, DocumentError) as error:
            raise refused(error) from error
        resources = [
            types.Resource(uri=uri, name=file.name, mime_type="text/plain", size=file.n_bytes)
            for uri, file in files
        ]
        return types.ListResourcesResult(resources=resources, next_cursor=after)

    async def list_templates(
        _: Context, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=f"{_SCHEME}{{collection}}/{{+file}}",
            name="file",
            description="The text of a file listed by search_documents.",
            mime_type="text/plain",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(_: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            texts = await documents.read(params.uri)
        except (Refusal, DocumentError) as error:
            raise refused(error) from error
        return types.ReadResourceResult(
            contents=[
                types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=text)
                for text in texts
            ]
        )

    server = Server[Any](
        "edgechat-documents",
        version=__version__,
        title="edgechat documents",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    try:
        # The SDK's own reader has no size limit, and makes Ctrl+C wait for a line.
        # The type is ignored because stdio_server only iterates over its argument.
        async with stdio_server(_lines()) as (incoming, outgoing):  # type: ignore[arg-type]
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await documents.close()


async def _lines() -> AsyncIterator[str]:
    """Yield lines from stdin, until it ends or a line is too long."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes](_MOST_WAITING)

    def read() -> None:
        line = b"-"
        with open(os.dup(0), "rb") as stdin, suppress(RuntimeError):  # raised once the loop is closed
            while line:
                line = stdin.readline(_LONGEST_LINE)
                line = line if line.endswith(b"\n") else b""
                asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()

    threading.Thread(target=read, daemon=True, name="stdin").start()
    while line := await queue.get():
        yield line.decode("utf-8", "replace")
