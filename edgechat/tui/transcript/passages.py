"""The passages of documents that a question was sent with: a line, and unfolded their names."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from edgechat.base.text import one_line
from edgechat.chat.records import Attachment
from edgechat.tui.markdown.blocks import RenderedLine
from edgechat.tui.transcript.pieces import FoldedPiece, FoldedSheet, behind_bar
from edgechat.tui.transcript.sheet import Sheet


class PassagesPiece(FoldedPiece):
    """Passages, folded until the user unfolds them; a click on a name shows the passage."""

    def __init__(self, passages: Sequence[Attachment]) -> None:
        super().__init__("\n".join(one_line(one.name) for one in passages))
        self._passages = passages

    def _new_sheet(self) -> Sheet:
        return PassagesSheet(self)

    def estimate(self, width: int) -> int:
        return 1 + len(self._passages) * self.unfolded

    def heading(self, width: int) -> Content:
        """See `FoldedPiece`."""
        sources = [one.source for one in self._passages if one.source is not None]
        n_whole = sum(not source.place for source in sources)
        counts = [(n_whole, "whole document"), (len(sources) - n_whole, "passage")]
        amount = " and ".join(f"{n:,} {what}{'s' * (n != 1)}" for n, what in counts if n)
        names = ", ".join(dict.fromkeys(one_line(source.collection, 40) for source in sources))
        line = f"{'▾' if self.unfolded else '▸'} ▤ {amount} from {names}"
        return Content(one_line(line, width)).stylize(".faint")

    def body(self, width: int) -> list[RenderedLine]:
        """See `FoldedPiece`."""
        lines: list[RenderedLine] = []
        for one in self._passages:
            name = Content(one_line(one.name, max(1, width - 2))).stylize(".code")
            if one.source is not None:
                name = name.stylize(Style.from_meta({"@click": f"screen.passage({one.source.number})"}))
            lines += behind_bar(name, width, ".faint", "│ ")
        return lines


class PassagesSheet(FoldedSheet):
    """Passages, right below their question."""

    DEFAULT_CSS = """
    PassagesSheet { padding: 0; }
    """
