"""A field for several lines of text, which shows control characters."""

from __future__ import annotations

from typing import overload

from textual import events
from textual.document._document import Document
from textual.document._document_navigator import DocumentNavigator
from textual.document._wrapped_document import WrappedDocument
from textual.strip import Strip
from textual.widgets import TextArea

from edgechat.base.text import visible
from edgechat.tui.widgets.editing import run_own_binding


class _PrintableDocument(Document):
    """A document whose `lines`, from which it is drawn and measured, show control characters.

    `text` and `get_text_range` return the original text. Both have the same length, so that positions agree.
    """

    @property
    def lines(self) -> list[str]:
        return [visible(line) for line in self._lines]

    @overload
    def __getitem__(self, line_index: int) -> str: ...

    @overload
    def __getitem__(self, line_index: slice) -> list[str]: ...

    def __getitem__(self, line_index: int | slice) -> str | list[str]:
        if isinstance(line_index, slice):
            return [visible(line) for line in self._lines[line_index]]
        return visible(self._lines[line_index])


class Area(TextArea):
    """Textual's TextArea for untrusted text: a file's name, an old question, an imported chat."""

    async def _on_key(self, event: events.Key) -> None:
        if await run_own_binding(self, event):
            self._restart_blink()

    def render_line(self, y: int) -> Strip:
        """Return what a line shows: nothing where there is no column to wrap the placeholder to."""
        return super().render_line(y) if self.content_size.width else Strip.blank(self.size.width)

    def _set_document(self, text: str, language: str | None) -> None:
        # Like Textual's method, which has no hook for another class of document.
        self._highlight_query = None
        self.document = _PrintableDocument(text)
        self.wrapped_document = WrappedDocument(self.document, tab_width=self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)
        self._build_highlight_map()
        self.move_cursor((0, 0))
        self._rewrap_and_refresh_virtual_size()
