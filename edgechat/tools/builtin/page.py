"""Pages of the public web, as text."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from typing import Annotated

import msgspec

from edgechat.base.text import one_line
from edgechat.base.web import Fetched, NotFetched, PublicWeb
from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool, ToolFailure

_MOST_BYTES = 2 * 2**20
_SECONDS = 20.0
_READABLE = ("text/", "application/json", "application/xml", "application/xhtml")
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)", re.IGNORECASE)
_UNSEEN = frozenset(("script", "style", "noscript", "template", "svg", "head", "iframe", "object"))
_BLOCK_TAGS = (
    "p div br li ul ol tr table section article header footer h1 h2 h3 h4 h5 h6 pre blockquote dt dd"
)
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_BLANK_LINES = re.compile(r"[ \t]*\n[ \t\n]*\n[ \t]*")


class PageAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `fetch_page`."""

    url: Annotated[str, msgspec.Meta(description="An http or https URL", max_length=2000)]


def web_pages(web: PublicWeb | None = None) -> BuiltInGroup:
    """Return the tool that fetches pages."""
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
        raise ToolFailure(f"{one_line(found.url)} is no text, but {one_line(kind, 80)}.")
    if b"\0" in found.data[:8192]:
        raise ToolFailure(f"{one_line(found.url)} is no text.")
    charset = _CHARSET.search(kind) or _CHARSET.search(found.data[:2048].decode("latin-1"))
    try:
        text = found.data.decode(charset.group(1) if charset else "utf-8", "replace")
    except LookupError:
        text = found.data.decode("utf-8", "replace")
    if "html" in kind or (not kind and "<html" in text[:2048].lower()):
        text = page_text(text)
    return f"{one_line(found.url)}\n\n{text}" + "\n[The page is longer.]" * found.cut


def page_text(html: str) -> str:
    """Return what a page says: its title, and its text in lines, with the addresses of its links."""
    reader = _PageReader()
    reader.feed(html)
    reader.close()
    text = _BLANK_LINES.sub("\n\n", "".join(reader.parts)).strip()
    title = " ".join("".join(reader.title).split())
    return f"{title}\n\n{text}" if title else text


class _PageReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title: list[str] = []
        self._unseen: list[str] = []
        self._link = ""
        self._in_title = self._in_pre = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title" and not self.title
        if tag in _UNSEEN:
            self._unseen.append(tag)
        elif tag in _BLOCKS:
            self._in_pre = self._in_pre or tag == "pre"
            self.parts.append("\n- " if tag == "li" else "\n")
        elif tag == "a":
            link = dict(attrs).get("href") or ""
            self._link = link if link.startswith(("http://", "https://", "/")) and len(link) < 500 else ""

    def handle_endtag(self, tag: str) -> None:
        self._in_title = self._in_title and tag != "title"
        if tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        elif tag in _BLOCKS:
            self._in_pre = self._in_pre and tag != "pre"
            self.parts.append("\n")
        elif tag == "a" and self._link and not self._unseen:
            self.parts.append(f" ({self._link})")
            self._link = ""

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._unseen:
            self.parts.append(data if self._in_pre else re.sub(r"\s+", " ", data))
