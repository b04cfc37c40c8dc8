"""Base classes for screens and dialogs, and two simple dialogs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Button, Static

from edgechat.base.errors import EdgechatError


class AppScreen(Screen[ScreenResultType]):
    """A screen that ignores outdated terminal sizes, and drops callbacks once it is closed.

    A screen laid out at a size other than the terminal's sends itself a Resize. A busy screen with two
    sizes queued would lay itself out for each in turn, forever.
    """

    @on(events.Resize)
    def _ignore_outdated_size(self, event: events.Resize) -> None:
        if event.size != self.app.size:
            event.stop()
            event.prevent_default()

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        def call_if_open() -> Any:  # the widgets of a closed screen may be gone
            return callback(*args, **kwargs) if self.is_open else None

        return super().call_after_refresh(call_if_open)

    @property
    def is_open(self) -> bool:
        """Whether the screen is still open. Its background work may outlive it."""
        return self in self.app.screen_stack


class ScreenScroll(VerticalScroll, can_focus=False, inherit_bindings=False):
    """A list with no keys of its own: the screen's keys scroll it or move the focus within it."""


class AppDialog(ModalScreen[ScreenResultType], AppScreen[ScreenResultType]):
    """A screen on top of another, with its content in a box of class `frame`."""

    # Textual inherits CSS from the first base class.
    DEFAULT_CSS = """
    AppDialog {
        align: center middle;
        & > .frame {
            width: 90; max-width: 100%; height: auto; max-height: 100%;
            border: round $primary; padding: 0 1; background: $surface; scrollbar-size-vertical: 1;
            border-title-style: bold; border-title-color: $primary; border-subtitle-style: dim;
        }
        & KeyedList, & KeyedList:focus {
            height: auto;
            & > .option-list--option-highlighted {
                background: $block-cursor-background;
                color: $block-cursor-foreground;
                text-style: $block-cursor-text-style;
            }
        }
    }
    """

    def action_scroll(self, by: int) -> None:
        """Scroll the dialog's box by `by` pages."""
        box = self.query_one(VerticalScroll)
        box.scroll_relative(y=by * max(1, box.size.height - 1), animate=False)


def error_text(error: EdgechatError) -> str:
    """Return an error's message, followed by its hint."""
    return " ".join(filter(None, (error.message, error.hint)))


class ConfirmDialog(AppDialog[bool]):
    """A question with two answers; the default one changes nothing."""

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
    """A dialog with scrollable text."""

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
