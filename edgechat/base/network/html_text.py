"""HTML as Markdown text: headings, lists and code are marked up, and tabs separate a table's cells.

A malicious page can keep Python's parser busy for hours, so this runs in a child process (`main`). Libraries
offer less: inscriptis needs lxml and requests and lays out tables in columns; selectolax only produces a
tree.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from html.parser import HTMLParser

from edgechat.base.process.ask import answer
from edgechat.base.process.child import limit_memory

_SLICE = 1 << 16
"""Number of characters to parse at once."""
_UNSEEN = frozenset(("script", "style", "noscript", "template", "svg", "iframe", "object"))
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_LISTS = frozenset(("ul", "ol"))
_PARAGRAPHS = frozenset(("p", "table", "section", "article", "header", "footer", "blockquote", "dl", "hr"))
_LINES = frozenset(("div", "br", "li", "tr", "dt", "dd", "caption", "option"))
_BLOCKS = _LINES | _LISTS | _PARAGRAPHS | {*_HEADINGS, "pre"}
_DEEPEST = 8
"""Nesting depth beyond which lists are not indented any further."""
_CHARSET = re.compile(r"(?:charset|encoding)=[\"']?([\w.:-]+)", re.IGNORECASE)
_SLOW_CHARSETS = ("idna", "punycode")
"""Encodings meant for host names; decoding a page with one of them would take minutes."""
_SPACES = re.compile(r"\s+")


def decoded(data: bytes, content_type: str = "") -> str:
    """Decode a page using the charset given in its content type or first bytes, or else UTF-8."""
    for mark, charset in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(charset, "replace").removeprefix("\ufeff")
    named = _CHARSET.search(content_type) or _CHARSET.search(data[:2048].decode("latin-1"))
    try:
        charset = codecs.lookup(named.group(1) if named else "utf-8").name
        return data.decode("utf-8" if charset in _SLOW_CHARSETS else charset, "replace")
    except (LookupError, ValueError):  # there is no such charset, or it does not encode text
        return data.decode("utf-8", "replace")


def html_text(html: str, *, with_title: bool = True, with_links: bool = False) -> Iterator[str]:
    """Yield the text of a page in parts: its title as a heading, then its body.

    with_links: whether to include the addresses of links.
    """
    reader = _HtmlReader(with_links=with_links)
    for start in range(0, len(html), _SLICE):
        reader.feed(html[start : start + _SLICE])
        if start == 0 and with_title and (title := reader.title()):
            yield f"# {title}\n\n"
        yield reader.taken()
    reader.close()
    yield reader.taken()


class _HtmlReader(HTMLParser):
    def __init__(self, *, with_links: bool = False) -> None:
        super().__init__(convert_charrefs=True)
        self._with_links = with_links
        self._parts: list[str] = []
        self._title: list[str] = []
        self._unseen, self._unseen_depth = "", 0
        """The outermost hidden element, and how many elements with the same tag are open."""
        self._link = ""
        self._in_title = self._in_pre = False
        self._lists = self._cells = 0
        self._breaks = 0
        """Number of newlines to insert before the next text."""
        self._is_fresh = True
        """Whether the line is empty apart from a marker at its start."""

    def title(self) -> str:
        """Return the title so far, as one line."""
        return " ".join("".join(self._title).split())

    def taken(self) -> str:
        """Return the text collected since the last call."""
        text = "".join(self._parts)
        self._parts.clear()
        return text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title" and not self._title
        if self._unseen:
            self._unseen_depth += tag == self._unseen
        elif tag in _UNSEEN:
            self._unseen, self._unseen_depth = tag, 1
        elif tag in ("td", "th"):
            self._begin_cell()
        elif tag == "a" and self._with_links:
            link = dict(attrs).get("href") or ""
            self._link = link if link.startswith(("http://", "https://", "/")) and len(link) < 500 else ""
        elif self._break(tag):
            if tag in _HEADINGS:
                self._begin_line(_HEADINGS[tag])
            elif tag == "li":
                self._begin_line("  " * (min(self._lists, _DEEPEST) - 1) + "- ")
            elif tag == "pre":
                self._begin_line("```\n")
                self._in_pre = True
            self._lists += tag in _LISTS
            self._cells = 0 if tag == "tr" else self._cells

    def handle_endtag(self, tag: str) -> None:
        self._in_title = self._in_title and tag != "title"
        if self._unseen:
            self._unseen_depth -= tag == self._unseen
            self._unseen = self._unseen if self._unseen_depth else ""
        elif tag == "a" and self._link:
            self._write(f" ({self._link})")
            self._link = ""
        elif tag == "pre" and self._in_pre:
            self._in_pre = False
            self._breaks = 1
            self._write("```")
            self._breaks = 2
        else:
            self._lists -= tag in _LISTS and self._lists > 0
            self._break(tag)
            self._cells = 0 if tag in ("tr", "table") else self._cells

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._unseen:
            if not self._in_pre:
                data = _SPACES.sub(" ", data)
                if self._breaks or self._is_fresh:
                    data = data.lstrip(" ")
            if data:
                self._write(data)

    def _break(self, tag: str) -> bool:
        """End the line or paragraph if this tag requires it; return whether it does."""
        if tag not in _BLOCKS:
            return False
        wanted = 1 if self._cells or self._lists or tag in _LINES else 2
        if not self._is_fresh:
            self._breaks = max(self._breaks, wanted)
        return True

    def _begin_line(self, mark: str) -> None:
        self._write(mark)
        self._is_fresh = True

    def _begin_cell(self) -> None:
        if self._cells:
            if self._parts:
                self._parts[-1] = self._parts[-1].rstrip(" ")
            self._breaks = 0
            self._begin_line("\t")
        self._cells += 1

    def _write(self, text: str) -> None:
        self._parts.append("\n" * self._breaks + text)
        self._breaks, self._is_fresh = 0, False


_MEMORY = 2**30
"""Memory limit for the child, in bytes."""


def page_text(html: str) -> str:
    """Return a page's text, including the addresses of its links."""
    return "".join(html_text(html, with_links=True)).strip("\n")


def main() -> None:
    """In a child: convert HTML requests to text."""
    limit_memory(_MEMORY)
    answer(lambda html: page_text(html.decode()).encode("utf-8", "replace"))
