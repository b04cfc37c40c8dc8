"""Text fields that show control characters and process editing keys in order.

They run the binding of a key such as Backspace immediately. Textual runs it only after the key has
bubbled up to the app, and in a burst of keys the letters that follow would overtake it.
"""

from __future__ import annotations

from typing import overload

from rich.cells import cell_len
from rich.text import Text
from textual import events, on
from textual.expand_tabs import expand_tabs_inline
from textual.strip import Strip
from textual.widgets import Input, TextArea
from textual.widgets.text_area import Document, DocumentNavigator, WrappedDocument

from edgechat.base.text import visible


class _PrintableDocument(Document):
    """A document whose `lines`, used for drawing and measuring, show control characters.

    `text` and `get_text_range` return the original text. Both texts have the same length, so positions match.
    """

    @property
    def lines(self) -> list[str]:
        return [visible(line) for line in super().lines]

    @overload
    def __getitem__(self, line_index: int) -> str: ...

    @overload
    def __getitem__(self, line_index: slice) -> list[str]: ...

    def __getitem__(self, line_index: int | slice) -> str | list[str]:
        found = super().__getitem__(line_index)
        return visible(found) if isinstance(found, str) else [visible(line) for line in found]


class Area(TextArea):
    """Textual's TextArea for untrusted text such as a file name, an old question or an imported chat."""

    @on(events.Key)
    async def _run_binding(self, event: events.Key) -> None:
        await _run_own_binding(self, event)

    def render_line(self, y: int) -> Strip:
        """Render a line; blank if there is no room for the wrapped placeholder."""
        return super().render_line(y) if self.content_size.width else Strip.blank(self.size.width)

    def _set_document(self, text: str, language: str | None) -> None:
        # Textual has no hook for a custom document class.
        super()._set_document(text, None)
        self.document = _PrintableDocument(text)
        self.wrapped_document = WrappedDocument(self.document, tab_width=self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)
        self._rewrap_and_refresh_virtual_size()


_TAB = 4


def _displayed(value: str) -> str:
    return visible(value).replace("\n", "␊")


class LineField(Input):
    """Textual's Input for untrusted values such as a conversation's title, a setting or a paste."""

    @on(events.Key)
    async def _run_binding(self, event: events.Key) -> None:
        await _run_own_binding(self, event)

    @property
    def _value(self) -> Text:
        return Text(_displayed(self.value), no_wrap=True, overflow="ignore", end="")

    def _position_to_cell(self, position: int) -> int:
        return cell_len(expand_tabs_inline(_displayed(self.value)[:position], _TAB))

    def _cell_offset_to_index(self, offset: int) -> int:
        offset += self.scroll_offset.x
        ends = (self._position_to_cell(at) for at in range(1, len(self.value) + 1))
        return next((at for at, end in enumerate(ends) if offset < end), len(self.value))


async def _run_own_binding(field: Input | TextArea, event: events.Key) -> None:
    """Run the field's own binding for a key immediately, if one is enabled."""
    if event.is_printable:
        return
    found = field.screen.active_bindings.get(event.key)
    if found is None or found.node is not field or found.binding.priority:
        return
    if await field.app.run_action(found.binding.action, field):
        event.stop()
        event.prevent_default()
        field._restart_blink()
