"""The line above the prompt box: what the engine is doing."""

from __future__ import annotations

import time

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_WIDTH = 16


class Activity(Static):
    """A spinner, a text, and a bar if the progress is known; empty while nothing goes on."""

    DEFAULT_CSS = """
    Activity {
        height: 1;
        padding: 0 2;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        color: $primary;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = ""
        self._share: float | None = None
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        self._timer = self.set_interval(0.1, self._turn, pause=True)

    def show(self, text: str, share: float | None = None) -> None:
        """Show what goes on. share: how much of it is done, 0 to 1, if that is known."""
        if (text, share) == (self._text, self._share):
            return
        self._text, self._share = text, share
        if self._timer is not None:
            self._timer.resume()
        self._turn()

    def clear(self) -> None:
        self._text, self._share = "", None
        if self._timer is not None:
            self._timer.pause()
        self.update("", layout=False)

    def _turn(self) -> None:
        frame = _FRAMES[int(time.monotonic() * 10) % len(_FRAMES)]
        parts: list[Content | str | tuple[str, str]] = [f"{frame} {self._text}"]
        if self._share is not None:
            done = round(self._share * _BAR_WIDTH)
            parts += ["  ", "━" * done, ("━" * (_BAR_WIDTH - done), "dim"), f" {self._share:.0%}"]
        self.update(Content.assemble(*parts), layout=False)
