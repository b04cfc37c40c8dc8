"""The terminal window: title, desktop notifications, signals that end the app, and an output filter."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from edgechat.base.text import one_line, printable

_MAX_TITLE = 80
_NO_TITLE = ("", "dumb", "linux")
"""Values of TERM for terminals without a window title."""
_OSC_9 = ("iTerm.app", "WezTerm", "ghostty")
"""Values of TERM_PROGRAM for terminals that show OSC 9 as a desktop notification."""


class TerminalWindow:
    """Sets the title and sends notifications, using sequences that the terminal understands."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._title: str | None = None
        """The current title; None before the first one is set."""
        self._has_title = os.environ.get("TERM", "") not in _NO_TITLE

    def show_title(self, title: str, *, is_busy: bool = False) -> None:
        """Set the window's title. is_busy: whether to add a mark."""
        title = one_line(f"{'● ' * is_busy}{title}", _MAX_TITLE)
        if not self._has_title or title == self._title:
            return
        # Push the original title onto the terminal's stack the first time.
        self._write(f"{'' if self._title is not None else _escape('[22;2t')}{_osc(f'2;{title}')}")
        self._title = title

    def restore_title(self) -> None:
        """Restore the original title. Later titles are ignored."""
        if self._has_title and self._title is not None:
            # Cleared first, for terminals without a title stack.
            self._write(_osc("2;") + _escape("[23;2t"))
        self._has_title = False

    def announce(self, message: str) -> None:
        """Show a desktop notification, or ring the bell if the terminal cannot show one."""
        message = one_line(message, 200)
        term, program = os.environ.get("TERM", ""), os.environ.get("TERM_PROGRAM", "")
        if "TMUX" in os.environ or "STY" in os.environ:  # multiplexers pass on only the bell
            self._write("\a")
        elif program in _OSC_9 or term.startswith("xterm-kitty"):
            self._write(_osc(f"9;{message}"))
        elif term.startswith(("foot", "rxvt")):
            self._write(_osc(f"777;notify;edgechat;{message.replace(';', ',')}"))
        else:
            self._write("\a")


def _escape(sequence: str) -> str:
    return f"\x1b{sequence}"


def _osc(text: str) -> str:
    return f"\x1b]{text}\x1b\\"


_QUIT_TIMEOUT = 5.0
"""Seconds for a graceful shutdown. Writing to a terminal that is gone can block forever."""


class EndSignals:
    """Turns SIGINT, SIGTERM and SIGHUP into one call of `quit`; Windows has only the first two."""

    def __init__(self, quit: Callable[[], Awaitable[None]]) -> None:
        self._quit = quit
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                # The loop's own handlers would not run while the loop is blocked.
                signal.signal(getattr(signal, name), self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, _QUIT_TIMEOUT)  # SIGALRM kills the process
        self._loop.call_soon_threadsafe(self._start_quitting, number)

    def _start_quitting(self, number: int) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._quit_and_hang_up(number))

    async def _quit_and_hang_up(self, number: int) -> None:
        # After `kill -HUP` the terminal still exists, and its modes must be restored.
        is_gone = number == getattr(signal, "SIGHUP", None) and not os.isatty(0)
        await self._quit()
        if is_gone:
            restore_hang_up()
            os.kill(os.getpid(), signal.SIGHUP)  # there is no terminal left to restore


def restore_hang_up() -> None:
    """Restore SIGHUP's default action, which ends the process. Call this once everything is saved."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


class OutputFilter(LineFilter):
    """A filter that removes control characters, which take up no cells, from all output.

    Textual's own widgets need this. Ours have already removed them, or make them visible (`Area`,
    `LineField`).
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [segment if segment.text.isprintable() else _without_controls(segment) for segment in segments]


def _without_controls(segment: Segment) -> Segment:
    return Segment(printable(segment.text).replace("\n", ""), segment.style, segment.control)
