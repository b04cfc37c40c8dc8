"""The line above the prompt box: what the engine is doing."""

from __future__ import annotations

import time

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_WIDTH = 16
_CELLS = 24
"""The greatest width of the cells of a prompt."""
_CACHED, _READ, _UNREAD = ("▒", "$primary"), ("▓", "$success"), ("·", "dim")
"""As in the engine room's map of the cache."""
_Parts = list[Content | str | tuple[str, str]]


class Activity(Static):
    """A spinner, a text, and a bar if the progress is known; empty while nothing goes on.

    While a prompt is read, the bar is a small map of the cache: what was there already, what was read, and
    what is to be read.
    """

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
        self._cached: float | None = None
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        self._timer = self.set_interval(0.1, self._turn, pause=True)

    def show(self, text: str, share: float | None = None, cached: float | None = None) -> None:
        """Show what goes on.

        share: how much of it is done, 0 to 1, if that is known. cached: of a prompt that is read, how much of
        it was in the cache already.
        """
        if (text, share, cached) == (self._text, self._share, self._cached):
            return
        self._text, self._share, self._cached = text, share, cached
        if self._timer is not None:
            self._timer.resume()
        self._turn()

    def clear(self) -> None:
        self._text, self._share, self._cached = "", None, None
        if self._timer is not None:
            self._timer.pause()
        self.update("", layout=False)

    def _turn(self) -> None:
        frame = _FRAMES[int(time.monotonic() * 10) % len(_FRAMES)]
        parts: _Parts = [f"{frame} {self._text}"]
        if self._share is not None:
            bar = self._bar(self._share) if self._cached is None else self._cells(self._share, self._cached)
            parts += ["  ", *bar, f" {self._share:.0%}"]
        self.update(Content.assemble(*parts), layout=False)

    def _bar(self, share: float) -> _Parts:
        done = round(share * _BAR_WIDTH)
        return ["━" * done, ("━" * (_BAR_WIDTH - done), "dim")]

    def _cells(self, share: float, cached: float) -> _Parts:
        """Return a character for each part of the prompt; what is not empty gets at least one."""
        n = max(8, min(_CELLS, self.content_size.width - len(self._text) - 10))
        n_cached = min(n - 2, max(1, round(cached * n))) if cached else 0
        n_done = min(n, max(n_cached + (share > cached), round(share * n)))
        counts = (n_cached, n_done - n_cached, n - n_done)
        return [
            (mark * count, style)
            for (mark, style), count in zip((_CACHED, _READ, _UNREAD), counts, strict=True)
        ]
