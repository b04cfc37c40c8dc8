"""The base classes of all our screens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual import events
from textual.screen import ModalScreen, Screen, ScreenResultType

from edgechat.base.errors import EdgechatError


class AppScreen(Screen[ScreenResultType]):
    """A screen that ignores outdated sizes of the terminal, and drops callbacks once it has been left.

    A screen that is laid out in another size sends itself a Resize. If two sizes were under way to a busy
    screen, it would lay itself out for each in turn, forever.
    """

    async def _on_resize(self, event: events.Resize) -> None:
        if event.size != self.app.size:
            event.stop()
            event.prevent_default()

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        def call_if_open() -> Any:  # the widgets of a screen that has been left may be gone
            return callback(*args, **kwargs) if self.is_open else None

        return super().call_after_refresh(call_if_open)

    @property
    def is_open(self) -> bool:
        """Whether the screen has not been left; its background work may end later."""
        return self in self.app.screen_stack


class AppDialog(ModalScreen[ScreenResultType], AppScreen[ScreenResultType]):
    """A screen in front of another one, with a box of the class `frame` around all that it has."""

    # Textual inherits CSS from the first base.
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


def error_text(error: EdgechatError) -> str:
    """Return the message of an error, followed by its hint."""
    return " ".join(filter(None, (error.message, error.hint)))
