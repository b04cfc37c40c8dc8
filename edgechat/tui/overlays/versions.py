"""The versions of a turn side by side: two columns where there is room, else one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.content import Content

from edgechat.chat.records import Turn
from edgechat.tui.transcript.turns import pieces_of
from edgechat.tui.widgets.dialogs import AppDialog


class VersionsScreen(AppDialog[int | None]):
    """Shows all versions; returns the number of the one that was chosen, None if none was."""

    DEFAULT_CSS = """
    VersionsScreen {
        background: $background;
        & > VerticalScroll { border: round $primary; border-title-style: bold; border-subtitle-style: dim; }
        Grid { grid-size: 1; grid-rows: auto; grid-gutter: 1 2; height: auto; padding: 0 1; }
        Version { height: auto; border: round $border-blurred; padding: 0 1; }
        Version.-shown { border: round $primary; }
        &.-wide Grid { grid-size: 2; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012  (as in Screen)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,s", "dismiss(None)", "Back", show=False),
        *(Binding(str(n), f"choose({n})", "Choose", show=False) for n in range(1, 10)),
    ]

    def __init__(self, versions: Sequence[Turn], shown: int) -> None:
        """shown: the number of the one in the transcript, from 0."""
        super().__init__()
        self._versions = versions
        self._shown = shown

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box, Grid():
            for number, turn in enumerate(self._versions):
                yield Version(number, turn, is_shown=number == self._shown)
        box.border_title = "All versions"
        box.border_subtitle = "a number or a click chooses one · Esc closes"

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_choose(self, number: int) -> None:
        if number <= len(self._versions):
            self.dismiss(number - 1)


class Version(Vertical):
    """One version; a click chooses it."""

    def __init__(self, number: int, turn: Turn, *, is_shown: bool) -> None:
        super().__init__(*(piece.mount() for piece in pieces_of(turn)), classes="-shown" * is_shown)
        self._number = number
        self.border_title = Content(str(number + 1))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.screen.dismiss(self._number)
