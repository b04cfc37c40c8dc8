"""Output for people: aligned paragraphs with labels, under 80 columns, and tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TextIO

from edgechat.base.text import printable

WIDTH = 79
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def styled(stream: TextIO) -> bool:
    """Return whether to write escape sequences: to a terminal, unless NO_COLOR (no-color.org) is set."""
    return can_render(stream) and not os.environ.get("NO_COLOR")


def can_render(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that obeys escape sequences, be it without colours."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def sheet(rows: Iterable[tuple[str, str]], *, bold: bool = False, width: int = 11) -> str:
    """Return the rows (label, text) with the texts in a column; each line of a text is wrapped by itself.

    Lines that begin with two spaces are not wrapped: they are commands to copy.
    """
    lines: list[str] = []
    for label, text in rows:
        first = f"{label:<{width}}"
        if bold and label:
            first = first.replace(label, f"{_BOLD}{label}{_PLAIN}", 1)
        for line in printable(text).split("\n"):
            whole = line.startswith("  ")
            for part in [line[2:]] if whole else _wrapped(line, WIDTH - width):
                lines.append((first + part).rstrip())
                first = " " * width
    return "\n".join(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines with the same number of cells, aligned in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _wrapped(line: str, width: int) -> list[str]:
    import textwrap  # 2 ms

    # Paths stay whole, however long, so that they can be copied.
    return textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False) or [""]
