"""In a child process: the text of a page."""

from __future__ import annotations

from edgechat.base.network.html_text import html_text
from edgechat.base.process.ask import answer
from edgechat.base.process.child import limit_memory

_MEMORY = 2**30


def page_text(html: str) -> str:
    """Return what a page says, with the addresses of its links."""
    return "".join(html_text(html, with_links=True)).strip("\n")


def main() -> None:
    """Answer HTML with its text."""
    limit_memory(_MEMORY)
    answer(lambda html: page_text(html.decode()).encode("utf-8", "replace"))
