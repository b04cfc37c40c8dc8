"""The attachments of the next question, above the prompt box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.app import RenderResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from edgechat.base.text import one_line

if TYPE_CHECKING:
    from edgechat.chat.records import Attachment

_GAP = 1


class Chips(Widget):
    """The attachments of the next question, side by side; a click on one removes it."""

    DEFAULT_CSS = """
    Chips { height: 3; display: none; }
    Chips.-some { display: block; }
    """

    @dataclass
    class Removed(Message):
        """An attachment was clicked."""

        number: int

    def __init__(self) -> None:
        super().__init__()
        self._labels: list[str] = []

    def show(self, attachments: Sequence[Attachment]) -> None:
        from edgechat.tui.chat.prompt.reading_time import tokens_of  # not needed for the first frame

        self._labels = [f"▤ {one_line(file.name, 30)} ~{tokens_of(file):,} tokens ✕" for file in attachments]
        self.set_class(bool(attachments), "-some")
        self.refresh()

    def render(self) -> RenderResult:
        shown = self._fitting()
        more = len(self._labels) - len(shown)
        rest = Content.styled(f" and {more} more" if more else "", "dim")
        middle = [Content.assemble(("│ ", "dim"), label, (" │", "dim")) for label in shown]
        row = Content(" " * _GAP).join(middle) + rest
        if self.content_size.height < 3:
            return row
        edges = [
            Content.styled(
                (" " * _GAP).join(f"{left}{'─' * (_width(label) - 2)}{right}" for label in shown), "dim"
            )
            for left, right in ("╭╮", "╰╯")
        ]
        return Content("\n").join([edges[0], row, edges[1]])

    def _fitting(self) -> list[str]:
        """Return the labels that there is room for: the first ones."""
        room = self.content_size.width
        shown: list[str] = []
        for number, label in enumerate(self._labels):
            is_last = number == len(self._labels) - 1
            room -= _width(label) + _GAP * bool(shown)
            if room < (0 if is_last else len(" and 19 more")) and shown:
                break
            shown.append(label)
        return shown

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        x = offset.x
        for number, label in enumerate(self._fitting()):
            if 0 <= x < _width(label):
                self.post_message(self.Removed(number))
                return
            x -= _width(label) + _GAP


def _width(label: str) -> int:
    """Return the cells of a chip, its frame included."""
    return Content(label).cell_length + 4
