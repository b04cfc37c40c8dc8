"""The box the user types into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from edgechat.text import printable

_NEWLINE = ("ctrl+j", "shift+enter", "alt+enter")


class PromptBox(TextArea):
    """Grows with its text up to eight lines. Enter sends; Shift+Enter and Ctrl+J begin a line."""

    DEFAULT_CSS = """
    PromptBox, PromptBox:focus {
        height: auto;
        max-height: 10;
        border: round $primary;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        background: $background;
        & .text-area--cursor-line { background: $background; }
        & .text-area--placeholder { text-style: dim; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send"),
        Binding(",".join(_NEWLINE), "newline", "New line"),
        # The transcript's, which never has the focus.
        Binding("pageup", "screen.scroll('page_up')", show=False),
        Binding("pagedown", "screen.scroll('page_down')", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """The user pressed Enter."""

        box: PromptBox
        text: str

        @property
        def control(self) -> PromptBox:
            """The box it came from."""
            return self.box

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, placeholder="Ask something", highlight_cursor_line=False)

    def take(self, early: list[events.Key | events.Paste]) -> None:
        """Take what was typed before there was a box to type into."""
        for event in early:
            # From before the terminal was the app's an Enter comes as Ctrl+J.
            enter = isinstance(event, events.Key) and event.key == "ctrl+j"
            self._forward_event(events.Key("enter", "\r") if enter else event)

    def put_back(self, text: str) -> None:
        """Give the user back what could not be sent, before what was typed since."""
        self.text = f"{text}\n{self.text}" if self.text else text
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        # Here and not by binding: a binding runs later, and fast keys would overtake it.
        if event.key == "enter":
            self.action_send()
        elif event.key in _NEWLINE:
            self.action_newline()
        else:
            return
        event.stop()
        event.prevent_default()

    def action_send(self) -> None:
        """Hand the text to whoever listens, and be empty for the next; an empty one is none."""
        if self.text.strip():
            self.post_message(self.Submitted(self, self.text))
            self.clear()

    def action_newline(self) -> None:
        """Begin a line."""
        self._replace_via_keyboard("\n", *self.selection)

    async def _on_paste(self, event: events.Paste) -> None:
        # A terminal may send a line's end as \r, which `printable` would take away.
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        event.prevent_default()
        event.stop()
        await super()._on_paste(events.Paste(printable(text)))
