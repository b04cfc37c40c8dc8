"""A question before something that cannot be undone, and a text to read."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from edgechat.tui.terminal.screens import AppDialog


class ConfirmDialog(AppDialog[bool]):
    """A question with two answers; the first one changes nothing."""

    DEFAULT_CSS = """
    ConfirmDialog {
        & > .frame { width: 64; border: round $warning; padding: 1 2; }
        & Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
        & Button { margin-left: 2; min-width: 14; }
        & Button:focus { text-style: bold reverse; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", show=False),
        Binding("n,escape", "answer(False)", "No", show=False),
        Binding("left,right,up,down", "app.focus_next", "Other button", show=False),
    ]

    def __init__(self, question: Content, *, yes: str, no: str) -> None:
        super().__init__()
        self._question, self._yes, self._no = question, yes, no

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False, classes="frame"):
            yield Static(self._question)
            with Horizontal():
                yield Button(f"{self._no} (n)", id="no", compact=True)
                yield Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class TextDialog(AppDialog[None]):
    """A text that scrolls."""

    DEFAULT_CSS = """
    TextDialog > .frame { padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,w", "dismiss", "Back", show=False)]

    def __init__(self, title: str, text: Content) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        box = VerticalScroll(Static(self._text), classes="frame")
        box.border_title = Content(self._title)
        box.border_subtitle = "Esc closes"
        yield box
