"""A tool that fetches public web pages as text."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from edgechat.base.network.html_text import decoded
from edgechat.base.network.web import Fetched, NotFetched, PublicWeb
from edgechat.base.process.ask import ChildFailed, ask
from edgechat.base.text import is_binary, one_line
from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool, ToolFailure

_MOST_BYTES = 2 * 2**20
_SECONDS, _READING_SECONDS = 20.0, 10.0
_READABLE = ("text/", "application/json", "application/xml", "application/xhtml")


class PageAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `fetch_page`."""

    url: Annotated[str, msgspec.Meta(description="An http or https URL", max_length=2000)]


def web_pages(web: PublicWeb | None = None) -> BuiltInGroup:
    """Return the tool that fetches web pages."""
    public = web or PublicWeb("text/html, text/plain, application/json;q=0.9, */*;q=0.1")

    async def run(wanted: PageAddress) -> str:
        try:
            found = await asyncio.to_thread(
                public.fetch, wanted.url, most_bytes=_MOST_BYTES, seconds=_SECONDS, may_cut=True
            )
        except NotFetched as error:
            raise ToolFailure(f"{one_line(wanted.url)} cannot be fetched: {error}.") from error
        return await asyncio.to_thread(_text_of, found)

    description = "Fetches a page of the public web and returns its text, without scripts and images."
    return BuiltInGroup("web", BuiltInTool("fetch_page", description, PageAddress, run))


def _text_of(found: Fetched) -> str:
    kind = found.content_type.lower()
    if kind and not kind.startswith(_READABLE) and "+json" not in kind and "+xml" not in kind:
        raise ToolFailure(f"{one_line(found.url)} is not text, but {one_line(kind, 80)}.")
    if is_binary(found.data):
        raise ToolFailure(f"{one_line(found.url)} is not text.")
    text = decoded(found.data, kind)
    if "html" in kind or (not kind and "<html" in text[:2048].lower()):
        text = _read(text, found.url)
    return f"{one_line(found.url)}\n\n{text}" + "\n[The page is longer.]" * found.cut


def _read(html: str, url: str) -> str:
    """Return the text of a page, parsed in a child process."""
    try:
        return ask("page", html.encode("utf-8", "replace"), limit=_READING_SECONDS).decode()
    except ChildFailed as error:
        raise ToolFailure(f"{one_line(url)} cannot be read: its reader {error}.") from error
