"""One of several things to choose from: a line, or a card with a border."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.app import RenderResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget


class Choice(Widget, can_focus=True):
    """What has the focus is chosen by Enter, which is up to the screen; of clicks, the second one chooses."""

    DEFAULT_CSS = """
    Choice {
        height: auto;
        pointer: pointer;
        &:focus {
            background: $block-cursor-background;
            color: $block-cursor-foreground;
            text-style: $block-cursor-text-style;
        }
        &.-card {
            border: round $border-blurred;
            border-title-style: bold;
            border-title-color: $foreground;
            border-subtitle-color: $foreground;
            padding: 0 1;
        }
        &.-card:focus {
            border: heavy $primary;
            background: $background;
            color: $foreground;
            text-style: none;
        }
    }
    """

    @dataclass
    class Chosen(Message):
        """It was clicked while it had the focus."""

        choice: Choice

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = Content()
        self._was_clicked = False

    def show(self, text: Content) -> None:
        """Show this text, of one or several lines."""
        if not text.is_same(self._text) or text.spans != self._text.spans:
            self._text = text
            self.refresh(layout=True)

    def render(self) -> RenderResult:
        # On the ground of the cursor, other colours may not be legible.
        return Content(self._text.plain) if self.has_focus and not self.has_class("-card") else self._text

    def on_blur(self) -> None:
        self._was_clicked = False

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if self._was_clicked:
            self.post_message(self.Chosen(self))
        self._was_clicked = True
