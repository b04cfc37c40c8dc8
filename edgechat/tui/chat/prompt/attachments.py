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


class Chips(Widget):
    """The attachments of the next question, one line; a click on one removes it."""

    DEFAULT_CSS = """
    Chips { height: 1; display: none; padding: 0 2; }
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
        self._labels = [f"▤ {one_line(file.name, 30)} {_size(file.text)} ✕" for file in attachments]
        self.set_class(bool(attachments), "-some")
        self.refresh()

    def render(self) -> RenderResult:
        chips = [Content(label).stylize("reverse") for label in self._labels]
        return Content("  ").join(chips)

    def on_click(self, event: events.Click) -> None:
        x = event.x - self.styles.padding.left
        for number, label in enumerate(self._labels):
            width = Content(label).cell_length
            if 0 <= x < width:
                self.post_message(self.Removed(number))
                return
            x -= width + 2


def _size(text: str) -> str:
    lines = text.count("\n") + (not text.endswith("\n"))
    return f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
