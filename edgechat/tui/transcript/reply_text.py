"""The text of a reply in the transcript, with its citations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from textual import events
from textual.content import Content

from edgechat.base.text import one_line, printable
from edgechat.documents.citations import quotations_in
from edgechat.tui.markdown.blocks import EMPTY, RenderedLine
from edgechat.tui.markdown.document import CITED, Document, Sources
from edgechat.tui.transcript.pieces import Piece, PieceSheet, wrap
from edgechat.tui.transcript.sheet import Sheet

if TYPE_CHECKING:
    from edgechat.chat.records import Attachment

Passages = Mapping[int, "Attachment"]
"""What replies of a conversation may cite, by number; it may grow."""
NO_PASSAGES: Passages = MappingProxyType({})
_MOST_TOLD = 300
"""Letters of a passage that are shown where the mouse points at its number."""


class ReplyPiece(Piece):
    """A reply: Markdown, perhaps still growing. It is parsed only while it is near the screen."""

    is_searched = True

    def __init__(
        self, text: str = "", passages: Passages = NO_PASSAGES, *, is_complete: bool = False
    ) -> None:
        """is_complete: whether it has ended by itself, so that its quotations are held against passages."""
        super().__init__(text)
        self.passages = passages
        self._is_complete = is_complete
        self._unfounded: tuple[str, ...] | None = None
        self._document = Document()

    def _parsed(self) -> Document:
        sources = Sources(self.passages.keys(), self._unfounded_quotations())
        return Document(self.text, sources=sources)

    def _unfounded_quotations(self) -> tuple[str, ...]:
        """Return the quotations that are in no passage; of a reply without passages, none."""
        if not (self._is_complete and self.passages):
            return ()
        if self._unfounded is None:
            quotations = quotations_in(self.text, [one.text for one in self.passages.values()])
            self._unfounded = tuple(one.text for one in quotations if not one.is_there)
        return self._unfounded

    def mount(self) -> Sheet:
        self._document = self._parsed()
        return super().mount()

    def unmount(self) -> Sheet | None:
        self._document = Document()
        return super().unmount()

    def _new_sheet(self) -> Sheet:
        return ReplySheet(self)

    def append(self, text: str) -> None:
        text = printable(text)
        if self.sheet is not None:
            self._document.append(text)
        super().append(text)

    def finish(self) -> None:
        """Mark the quotations that are in no passage: it has ended by itself."""
        self._is_complete = True
        if self._unfounded_quotations() and self.sheet is not None:
            self._document = self._parsed()
            self._changed()

    def lay_out(self, width: int) -> list[RenderedLine]:
        return self._with_footnotes(self._document.lines(width), width)

    def lines(self, width: int) -> list[RenderedLine]:
        return self.lay_out(width) if self.sheet is not None else self._parsed().lines(width)

    def _with_footnotes(self, lines: list[RenderedLine], width: int) -> list[RenderedLine]:
        for at, quotation in enumerate(self._unfounded or ()):
            footnote = f"not in the documents: “{one_line(quotation, 120)}”"
            lines += [*([] if at else [EMPTY]), *wrap(footnote, width, ".warning")]
        return lines


class ReplySheet(PieceSheet):
    """A reply; where the mouse points at the number of a passage, it tells which one that is."""

    def __init__(self, piece: ReplyPiece) -> None:
        super().__init__(piece)
        self._reply = piece
        self._told: int | None = None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        number = event.style.meta.get(CITED)
        if number != self._told:
            self._told = number
            passage = self._reply.passages.get(number) if number is not None else None
            self.tooltip = _told(passage) if passage is not None else None

    def on_leave(self) -> None:
        self._told = self.tooltip = None


def _told(passage: Attachment) -> Content:
    return Content.assemble((one_line(passage.name, 120), "bold"), "\n", one_line(passage.text, _MOST_TOLD))
