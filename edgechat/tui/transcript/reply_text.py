"""The text of a reply in the transcript."""

from __future__ import annotations

from edgechat.base.text import printable
from edgechat.tui.markdown.blocks import RenderedLine
from edgechat.tui.markdown.document import Document
from edgechat.tui.transcript.pieces import Piece
from edgechat.tui.transcript.sheet import Sheet


class ReplyPiece(Piece):
    """A reply: Markdown, perhaps still growing. It is parsed only while it is near the screen."""

    is_searched = True

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self._document = Document()

    def mount(self) -> Sheet:
        self._document = Document(self.text)
        return super().mount()

    def unmount(self) -> Sheet | None:
        self._document = Document()
        return super().unmount()

    def append(self, text: str) -> None:
        text = printable(text)
        if self.sheet is not None:
            self._document.append(text)
        super().append(text)

    def lay_out(self, width: int) -> list[RenderedLine]:
        return self._document.lines(width)

    def lines(self, width: int) -> list[RenderedLine]:
        return (self._document if self.sheet is not None else Document(self.text)).lines(width)
