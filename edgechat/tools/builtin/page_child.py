"""In a child process: the text of a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from edgechat.base.process.ask import answer
from edgechat.base.process.child import limit_memory

_MEMORY = 2**30
_UNSEEN = frozenset(("script", "style", "noscript", "template", "svg", "head", "iframe", "object"))
_BLOCK_TAGS = (
    "p div br li ul ol tr table section article header footer h1 h2 h3 h4 h5 h6 pre blockquote dt dd"
)
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_BLANK_LINES = re.compile(r"[ \t]*\n[ \t\n]*\n[ \t]*")


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


def main() -> None:
    """Answer HTML with its text."""
    limit_memory(_MEMORY)
    answer(lambda html: page_text(html.decode()).encode("utf-8", "replace"))
