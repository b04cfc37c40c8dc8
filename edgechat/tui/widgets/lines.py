"""Lines around the prompt: engine activity, number of new lines, status bar."""

from __future__ import annotations

import time

from textual.app import RenderResult
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from edgechat.base.text import by_drafts, one_line

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_WIDTH = 16
_CELLS = 24
"""Maximum width of the map of the prompt, in cells."""
_CACHED, _READ, _UNREAD = ("▒", "$primary"), ("▓", "$success"), ("·", "dim")
"""Marks and styles, the same as in the engine room's cache map."""
_Parts = list[Content | str | tuple[str, str]]


class Activity(Static):
    """A spinner, a label, and a progress bar if the progress is known; empty when idle.

    While a prompt is being read, the bar is a small map of the cache: cached, read and unread parts.
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
        """Show an activity.

        share: the fraction done, from 0 to 1, if known. cached: the fraction of a prompt that was cached.
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
        """Return the map of the prompt: a run of characters for each part that is not empty."""
        n = max(8, min(_CELLS, self.content_size.width - len(self._text) - 10))
        n_cached = min(n - 2, max(1, round(cached * n))) if cached else 0
        n_done = min(n, max(n_cached + (share > cached), round(share * n)))
        counts = (n_cached, n_done - n_cached, n - n_done)
        return [
            (mark * count, style)
            for (mark, style), count in zip((_CACHED, _READ, _UNREAD), counts, strict=True)
        ]


_NEARLY_FULL = 0.85


class StatusBar(Widget):
    """The status bar: model on the left; tokens per second and context on the right."""

    DEFAULT_CSS = """
    StatusBar { height: 1; padding: 0 2; }
    """

    model = reactive("")
    speed = reactive(0.0)
    """Tokens per second in the current or last reply; 0 before the first."""
    speedup = reactive(0.0)
    """The last reply's speedup from drafting; 0 without drafts."""
    used: reactive[int | None] = reactive(0)
    """Context tokens used by the conversation; None if unknown."""
    context = reactive(0)
    think: reactive[bool | None] = reactive(None)
    """Whether thinking is switched on or off, or None for the model's default."""
    has_tools = reactive(False)
    """Whether the model may call tools."""
    adapters: reactive[tuple[str, ...]] = reactive(())
    """The LoRA adapters in use."""
    pulling = reactive("")
    """A line about the downloads in progress, or '' if there are none."""

    def render(self) -> RenderResult:
        width = self.size.width
        right = self._right(wide=width >= 70)
        model = one_line(" + ".join((self.model, *self.adapters)), max(10, width - len(right) - 2))
        left = Content.assemble((model, "bold"))
        if self.pulling:
            room = width - len(model) - len(right) - 7
            pulling = one_line(self.pulling, room) if room > 12 else ""
            left = Content.assemble(left, (f"  ↓ {pulling}" * bool(pulling), "$primary"))
        gap = " " * max(1, width - len(left) - len(right))
        return Content.assemble(left, gap, right)

    def _right(self, *, wide: bool) -> Content:
        parts: list[Content] = []
        if self.has_tools:
            parts.append(Content("tools on"))
        if self.think is not None:
            parts.append(Content(f"thinking {'on' if self.think else 'off'}"))
        if self.speed:
            gain = by_drafts(self.speedup, 1) if wide else ""
            parts.append(Content(f"{self.speed:.1f} tok/s" + f", {gain}" * bool(gain)))
        if self.context and self.used is not None:
            used = min(self.used, self.context)
            share = used / self.context
            usage = f"{share:.0%} of context"
            if wide:
                usage = f"{used:,} of {self.context:,} tokens ({share:.0%})"
            parts.append(Content(usage).stylize("bold" if share > _NEARLY_FULL else ""))
        return Content("  ·  ").join(parts).stylize("dim")


class NewLines(Static):
    """The number of new lines below the visible ones; hidden if zero. Clicking it scrolls down to them."""

    DEFAULT_CSS = """
    NewLines {
        width: auto; height: 1; padding: 0 1; display: none; color: $primary;
        &:hover { text-style: underline; }
        &.-some { display: block; }
    }
    """

    class Wanted(Message):
        """A request to show the new text."""

    def show(self, lines: int) -> None:
        self.set_class(lines > 0, "-some")
        self.update(f"↓ {lines:,} new line{'s' * (lines != 1)}")

    def on_click(self) -> None:
        self.post_message(self.Wanted())
