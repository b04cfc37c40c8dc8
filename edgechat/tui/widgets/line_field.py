"""A field for one line of text, which shows control characters."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.expand_tabs import expand_tabs_inline
from textual.widgets import Input

from edgechat.base.text import visible
from edgechat.tui.widgets.editing import run_own_binding

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
