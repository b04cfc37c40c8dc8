"""The terminal's window: its title, and messages of the desktop."""

from __future__ import annotations

import os
from collections.abc import Callable

from edgechat.base.text import one_line

_MAX_TITLE = 80
_NO_TITLE = ("", "dumb", "linux")
"""Values of TERM of terminals that have no window."""
_OSC_9 = ("iTerm.app", "WezTerm", "ghostty")
"""Values of TERM_PROGRAM of terminals that show OSC 9 as a message of the desktop."""


class TerminalWindow:
    """Writes what the terminal understands; nothing where it would understand nothing."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._title: str | None = None
        """None before the first one."""
        self._has_title = os.environ.get("TERM", "") not in _NO_TITLE

    def show_title(self, title: str, *, is_busy: bool = False) -> None:
        """Set the title of the window. is_busy: with a mark."""
        title = one_line(f"{'● ' * is_busy}{title}", _MAX_TITLE)
        if not self._has_title or title == self._title:
            return
        # The first time, the present title goes on the terminal's stack.
        self._write(f"{'' if self._title is not None else _escape('[22;2t')}{_osc(f'2;{title}')}")
        self._title = title

    def restore_title(self) -> None:
        """Restore the title from before the app, for good."""
        if self._has_title and self._title is not None:
            # Emptied first: a terminal without a stack of titles shows its own again then.
            self._write(_osc("2;") + _escape("[23;2t"))
        self._has_title = False

    def announce(self, message: str) -> None:
        """Show a message of the desktop, or ring the bell where the terminal has none."""
        message = one_line(message, 200)
        term, program = os.environ.get("TERM", ""), os.environ.get("TERM_PROGRAM", "")
        if "TMUX" in os.environ or "STY" in os.environ:  # they pass on the bell alone
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
