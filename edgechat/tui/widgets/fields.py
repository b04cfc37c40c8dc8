"""Text fields that show control characters, and edit in the order of the keys.

A field handles a letter itself, whereas Textual runs the binding of a key only when the key has bubbled up to
the app: of keys that come in one burst, later letters would overtake a Backspace.
"""

from __future__ import annotations

from typing import overload

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.document._document import Document
from textual.document._document_navigator import DocumentNavigator
from textual.document._wrapped_document import WrappedDocument
from textual.expand_tabs import expand_tabs_inline
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, TextArea

from edgechat.base.text import visible


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


_TAB = 4


def _displayed(value: str) -> str:
    return visible(value).replace("\n", "␊")


class LineField(Input):
    """Textual's Input for untrusted values: a conversation's title, a setting, a paste."""

    async def _on_key(self, event: events.Key) -> None:
        if await run_own_binding(self, event):
            self._restart_blink()

    @property
    def _value(self) -> Text:
        return Text(_displayed(self.value), no_wrap=True, overflow="ignore", end="")

    def _position_to_cell(self, position: int) -> int:
        return cell_len(expand_tabs_inline(_displayed(self.value)[:position], _TAB))

    def _cell_offset_to_index(self, offset: int) -> int:
        offset += self.scroll_offset.x
        ends = (self._position_to_cell(at) for at in range(1, len(self.value) + 1))
        return next((at for at, end in enumerate(ends) if offset < end), len(self.value))


async def run_own_binding(field: Widget, event: events.Key) -> bool:
    """Run at once what a field binds to a key; return whether it binds anything that is enabled."""
    if event.is_printable:
        return False
    for binding in field._bindings.key_to_bindings.get(event.key, ()):
        if not binding.priority and await field.app.run_action(binding.action, field):
            event.stop()
            event.prevent_default()
            return True
    return False
