"""Terminal input and output: errors, notes, sheets, tables, JSON, a status line, questions and pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, TextIO

from click.exceptions import Exit

from edgechat.base.text import escaped_json, flat, one_line, printable

WIDTH = 79
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
_INTERVAL = 0.1
_CLEAR = "\r\x1b[K"
USAGE_ERROR = 2
SIGNAL_EXIT = 128  # plus the number of the signal that ended the program, as in shells
_PATIENCE = 2.0
"""Seconds to wait before a note says that the program is reading standard input."""


def as_text(argument: str) -> str:
    """Return an argument with any non-UTF-8 bytes replaced."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def complain(message: str, hint: str | None) -> None:
    """Print an error on stderr: one line that says what happened, then what to do about it.

    Lines of the hint are joined, except for commands to copy, which start with two spaces.
    """
    print(f"error: {flat(message)}", file=sys.stderr)
    if hint:
        lines = [flat(line) for line in hint.split("\n  ")]
        print("\n".join(f"  {line}" for line in lines), file=sys.stderr)


def note(text: str) -> None:
    """Print a note on stderr."""
    print(f"note: {flat(text)}", file=sys.stderr)


def read_piped(limit: int) -> bytes:
    """Return up to `limit` bytes from standard input, however slowly they arrive.

    The parent process may have left the pipe open without writing anything to it, so after a while, a note
    says what the program is waiting for.
    """
    import threading

    nothing = "NUL" if sys.platform == "win32" else "/dev/null"
    text = f"still reading standard input, which has not ended. To do without it: <{nothing}"
    waiting = threading.Timer(_PATIENCE, note, [text])
    waiting.daemon = True  # so that the program can exit while it is still running
    waiting.start()
    try:
        return sys.stdin.buffer.read(limit)
    finally:
        waiting.cancel()


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the program in the same way as Ctrl+C, so that everything is saved."""
    # SIGHUP does not exist on Windows, and is ignored under nohup.
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number in numbers if before[number] is not signal.SIG_IGN]

    def leave(number: int, _: object) -> None:
        # When a terminal closes, both the shell and the kernel send a signal.
        # The second one must not interrupt saving.
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(SIGNAL_EXIT + number)

    for number in handled:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def print_json(value: object) -> None:
    """Print a value as JSON, on a single line that is safe to show in a terminal."""
    import json

    print(escaped_json(json.dumps(value, ensure_ascii=False)))


def is_interactive() -> bool:
    """Return whether there is a user who can be asked questions."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def confirm(question: str, nothing: str, without: str) -> None:
    """Ask for confirmation. Raises Exit: 1 if the user refuses, 2 if there is no terminal.

    nothing: a sentence saying that nothing was done. without: a sentence saying how to avoid the question.
    """
    if not is_interactive():
        complain(f"{nothing}: there is no terminal to confirm in.", without)
        raise Exit(USAGE_ERROR)
    if not answers_yes(question):
        print(f"{nothing}.")
        raise Exit(1)


def answers_yes(question: str) -> bool:
    """Ask a yes-or-no question; return whether the answer is yes."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def styled(stream: TextIO) -> bool:
    """Return whether to style output to `stream`: only if it is a terminal, and NO_COLOR is not set.

    See https://no-color.org.
    """
    return can_render(stream) and not os.environ.get("NO_COLOR")


def can_render(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal that supports escape sequences, though not necessarily colors."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def sheet(rows: Iterable[tuple[str, str]], *, bold: bool = False, width: int = 11) -> str:
    """Return (label, text) rows with all texts in one column. Each line of a text is wrapped separately.

    Lines that start with two spaces are commands to copy, so they are not wrapped.
    """
    lines: list[str] = []
    for label, text in rows:
        first = f"{label:<{width}}"
        if bold and label:
            first = first.replace(label, f"{BOLD}{label}{PLAIN}", 1)
        for line in printable(text).split("\n"):
            whole = line.startswith("  ")
            for part in [line[2:]] if whole else _wrapped(line, WIDTH - width):
                lines.append((first + part).rstrip())
                first = " " * width
    return "\n".join(lines)


def table(lines: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Return rows of cells with aligned columns. All rows must have the same number of cells.

    indent: text to put before each row; with two spaces, `sheet` does not wrap the row.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _wrapped(line: str, width: int) -> list[str]:
    import textwrap  # takes 2 ms

    # Do not break paths, however long, so that they can be copied.
    return textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False) or [""]


class StatusLine:
    """A status line that overwrites itself, shown on terminals only.

    As a context manager, it clears the line on exit.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on = stream.isatty()
        self._shown = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show `text`, unless the line was updated a moment ago."""
        if self._on and time.monotonic() - self._shown > _INTERVAL:
            self._stream.write(f"{_CLEAR}{one_line(text, 78)}")
            self._stream.flush()
            self._shown = time.monotonic()

    def say(self, sentence: str) -> None:
        """Do nothing; `SpokenStatus` prints the sentence for screen readers."""

    def heard(self) -> None:
        """Do nothing; `SpokenStatus` records the time of other input or output."""

    def clear(self) -> None:
        """Erase the line."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = 0.0
