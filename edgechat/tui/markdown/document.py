"""A Markdown text that grows at its end: only its last top-level block is ever parsed and laid out again."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from edgechat.tui.markdown.blocks import Block, BlockBuilder
from edgechat.tui.markdown.layout import EMPTY, Line, lines_of

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


class Document:
    """The blocks of a text, and their lines at the width that was asked for last."""

    def __init__(self, text: str = "") -> None:
        self._settled: list[Block] = []
        self._open: list[Block] = []
        self._tail = ""
        self._width = 0
        self._lines: list[Line] = []
        """Of the settled blocks."""
        self._laid_out = 0
        """How many of the settled blocks those are."""
        if text:
            self.append(text)

    def append(self, text: str) -> None:
        """Take more text."""
        self._tail += text
        tokens = _parser().parse(self._tail)
        begin = 0
        for at, token in enumerate(tokens):
            if token.level == 0 and token.map is not None and token.nesting >= 0:
                begin = at
        last_map = tokens[begin].map if tokens else None
        if begin and last_map is not None:
            self._settled += BlockBuilder().build(tokens[:begin])
            self._tail = "".join(self._tail.splitlines(keepends=True)[last_map[0] :])
        self._open = BlockBuilder().build(tokens[begin:])

    def lines(self, width: int) -> list[Line]:
        """Return all lines at a width; those of settled blocks are the same objects as before."""
        if width != self._width:
            self._width, self._lines, self._laid_out = width, [], 0
        for block in self._settled[self._laid_out :]:
            _extend(self._lines, block, width)
        self._laid_out = len(self._settled)
        lines = list(self._lines)
        for block in self._open:
            _extend(lines, block, width)
        return lines


def _extend(lines: list[Line], block: Block, width: int) -> None:
    if lines and block.gap:
        lines.append(EMPTY)
    lines += lines_of(block, width)


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """Return the parser: CommonMark and tables; HTML stays the text it is."""
    from markdown_it import MarkdownIt  # 40 ms, needed only once there is something to show

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
