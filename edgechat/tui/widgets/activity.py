"""The line above the prompt box: what the engine does right now."""

from __future__ import annotations

import time

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_WIDTH = 16


class Activity(Static):
    """Empty while nothing goes on; otherwise a spinner, some words, and a bar where the end is known."""

    DEFAULT_CSS = """
    Activity {
        height: 1;
        padding: 0 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        color: $primary;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words = ""
        self._share: float | None = None
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        """Make the spinner, which turns only while there is something to do."""
        self._timer = self.set_interval(0.1, self._turn, pause=True)

    def show(self, words: str, share: float | None = None) -> None:
        """Say what goes on; `share` (0 to 1) is how much of it is done, where that is known."""
        if (words, share) == (self._words, self._share):
            return
        self._words, self._share = words, share
        if self._timer is not None:
            self._timer.resume()
        self._turn()

    def clear(self) -> None:
        """Nothing goes on any more."""
        self._words, self._share = "", None
        if self._timer is not None:
            self._timer.pause()
        self.update("", layout=False)

    def _turn(self) -> None:
        frame = _FRAMES[int(time.monotonic() * 10) % len(_FRAMES)]
        parts: list[Content | str | tuple[str, str]] = [f"{frame} {self._words}"]
        if self._share is not None:
            done = round(self._share * _BAR_WIDTH)
            parts += ["  ", "━" * done, ("━" * (_BAR_WIDTH - done), "dim"), f" {self._share:.0%}"]
        self.update(Content.assemble(*parts), layout=False)
