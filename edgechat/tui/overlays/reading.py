"""Text shown over the chat: document passages, and the versions of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from edgechat.base.errors import EditorError
from edgechat.base.text import one_line, printable
from edgechat.chat.records import Attachment, Turn
from edgechat.documents.citations import PassageSource
from edgechat.documents.registry import holds
from edgechat.tui.transcript.turns import pieces_of
from edgechat.tui.widgets.dialogs import AppDialog, error_text

_MOST_SHOWN = 50_000
"""Maximum number of characters shown of a passage, which may be a whole document."""
_GONE = "The file is no longer in the documents."
_AWAY = "The file is missing."
_CHANGED = "The file has changed since."
_SAME = "The file has not changed since."


class PassageScreen(AppDialog[None]):
    """A dialog that shows one passage at a time."""

    DEFAULT_CSS = """
    PassageScreen {
        align: center top;
        & > .frame { margin-top: 1; }
        & Static { height: auto; }
        & #place { text-style: dim; }
        & #state { margin-bottom: 1; min-height: 1; }
    }
    """
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Previous passage", show=False),
        Binding("right,n", "step(1)", "Next passage", show=False),
        Binding("o,enter", "open", "Open the file", show=False),
        Binding("escape,q,p", "dismiss", "Back", show=False),
    ]

    def __init__(self, passages: Sequence[Attachment], number: int) -> None:
        """number: citation number of the passage to show first."""
        super().__init__()
        self._passages = [(one, one.source) for one in passages if one.source is not None]
        self._at = next((at for at, (_, source) in enumerate(self._passages) if source.number == number), 0)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="frame") as box:
            yield Static(id="place", markup=False)
            yield Static(id="state", markup=False)
            yield Static(id="text", markup=False)
        more = "←→ others · " if len(self._passages) > 1 else ""
        box.border_subtitle = f"{more}o opens the file · Esc closes"

    def on_mount(self) -> None:
        self._show()

    def _show(self) -> None:
        passage, source = self._passages[self._at]
        box = self.query_one(VerticalScroll)
        box.border_title = Content(one_line(passage.name, 80))
        self.query_one("#place", Static).update(one_line(f"{source.collection}: {source.path}", 400))
        self.query_one("#state", Static).update("")
        text = printable(passage.text)
        shown = Content(text[:_MOST_SHOWN])
        if len(text) > _MOST_SHOWN:
            rest = f"\n… and {len(text) - _MOST_SHOWN:,} more characters"
            shown += Content(rest).stylize("dim")
        self.query_one("#text", Static).update(shown)
        box.scroll_home(animate=False)
        self._look_at_file(source)

    @work(exclusive=True)
    async def _look_at_file(self, source: PassageSource) -> None:
        state = await asyncio.to_thread(_state_of, source)
        style = "" if state == _SAME else "$warning"
        self.query_one("#state", Static).update(Content(state).stylize(style))

    def action_step(self, by: int) -> None:
        self._at = (self._at + by) % len(self._passages)
        self._show()

    @work(exclusive=True, group="open")
    async def action_open(self) -> None:
        _, source = self._passages[self._at]
        try:
            if (missing := await asyncio.to_thread(_missing, source)) is not None:
                raise EditorError(missing)
            from edgechat.tui.terminal.programs import show_file

            await asyncio.to_thread(show_file, Path(source.path))
        except EditorError as error:
            self.app.notify(error_text(error), severity="error", markup=False)


def _missing(source: PassageSource) -> str | None:
    # An imported chat may name any path, but only files in the user's collections may be read.
    if not holds(source.collection, source.path):
        return _GONE
    return None if Path(source.path).is_file() else _AWAY


def _state_of(source: PassageSource) -> str:
    """Read the file and return its state as a sentence for users."""
    return _missing(source) or (_CHANGED if source.has_changed else _SAME)


class VersionsScreen(AppDialog[int | None]):
    """A dialog that shows all versions of a turn and returns the index of the chosen one, or None."""

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
        """shown: index of the version that the transcript shows."""
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
    """One version of a turn. Clicking it chooses it."""

    def __init__(self, number: int, turn: Turn, *, is_shown: bool) -> None:
        super().__init__(*(piece.mount() for piece in pieces_of(turn)), classes="-shown" * is_shown)
        self._number = number
        self.border_title = Content(str(number + 1))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.screen.dismiss(self._number)
