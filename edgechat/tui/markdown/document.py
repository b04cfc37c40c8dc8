"""A Markdown text that grows at its end: only its last block or list item is parsed and laid out again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from edgechat.tui.markdown.blocks import EMPTY, Block, RenderedLine
from edgechat.tui.markdown.builder import NO_SOURCES, BlockBuilder, ListContinuation, Sources
from edgechat.tui.markdown.layout import lines_of, unfilled

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


class Document:
    """The blocks of a text, and their lines at the width that was asked for last."""

    def __init__(self, text: str = "", *, filled: bool = True, sources: Sources = NO_SOURCES) -> None:
        """filled: whether code has a ground of its own as wide as the text, and a "copy" to click."""
        self._filled = filled
        self._sources = sources
        self._final: list[Block] = []
        self._open: list[Block] = []
        self._tail = ""
        self._continuation: ListContinuation | None = None
        """Set while the tail goes on with a list whose first items are final."""
        self._width = 0
        self._lines: list[RenderedLine] = []
        """Of the final blocks."""
        self._laid_out = 0
        """How many of the final blocks those are."""
        if text:
            self.append(text)

    def append(self, text: str) -> None:
        self._tail += text
        if "\n" in text:
            self._finish_blocks()
        builder = BlockBuilder(self._tail.split("\n"), self._continuation, self._sources)
        self._open = builder.build(_parser().parse(self._tail))

    def _finish_blocks(self) -> None:
        """Move what no further line can change out of the tail: all but the last block, or item of a list."""
        # Whole lines only: a '-' may become '-5', which begins no item.
        whole = self._tail[: self._tail.rindex("\n") + 1]
        tokens = _parser().parse(whole)
        begin = _last_start(tokens)
        line = (tokens[begin].map or [0])[0] if tokens else 0
        if line:
            builder = BlockBuilder(whole.split("\n"), self._continuation, self._sources)
            self._final += builder.build(tokens[:begin])
            self._continuation = builder.continuation_at(tokens[begin])
            self._tail = "\n".join(self._tail.split("\n")[line:])

    def lines(self, width: int) -> list[RenderedLine]:
        """Return all lines at a width; those of final blocks are the same objects as before."""
        lines = list(self.final_lines(width))
        for block in self._open:
            self._extend(lines, block, width)
        return lines

    def final_lines(self, width: int) -> list[RenderedLine]:
        """Return the lines of the blocks that no further text can change."""
        if width != self._width:
            self._width, self._lines, self._laid_out = width, [], 0
        for block in self._final[self._laid_out :]:
            self._extend(self._lines, block, width)
        self._laid_out = len(self._final)
        return self._lines

    @property
    def tail(self) -> str:
        """The source of the blocks that more text may change."""
        return self._tail

    @property
    def open_kind(self) -> str:
        """The kind of the block to which more text may belong; empty if there is none."""
        return self._open[-1].kind if self._open else ""

    def lines_of_tail(self, tail: str, width: int) -> list[RenderedLine]:
        """Return the lines that would follow the final ones if this were the tail."""
        seed = self.final_lines(width)[-1:]
        lines = list(seed)
        for block in BlockBuilder(tail.split("\n"), self._continuation).build(_parser().parse(tail)):
            self._extend(lines, block, width)
        return lines[len(seed) :]

    def _extend(self, lines: list[RenderedLine], block: Block, width: int) -> None:
        if lines and block.gap:
            lines.append(EMPTY)
        lines += lines_of(block, width) if self._filled else unfilled(lines_of(block, width))


def _last_start(tokens: Sequence[Token]) -> int:
    """Return where the last part begins that may still change: a top-level block, or the item of a list."""
    before, begin, in_list = 0, 0, False
    for at, token in enumerate(tokens):
        if token.level == 0 and token.nesting >= 0:
            before, begin, in_list = begin, at, token.type in ("bullet_list_open", "ordered_list_open")
        elif token.level == 1 and in_list and token.type == "list_item_open" and at > begin + 1:
            begin = at
    # A formula without an end may turn out to be words, and those belong to what stands before them.
    is_unfinished = bool(tokens) and tokens[begin].type == "math_block" and not tokens[begin].content
    return before if is_unfinished else begin


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """Return the parser: CommonMark, tables and maths; HTML is shown as text."""
    from markdown_it import MarkdownIt  # 40 ms, needed only once there is something to show

    from edgechat.tui.markdown import syntax

    # Deeper nesting is left out by the parser; fifty nested lists are more than anyone writes.
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable(["table", "strikethrough"])
    # Where a name stands for an address, both are shown as they stand: they arrive far from each other.
    return syntax.enable(parser.disable("reference"))
