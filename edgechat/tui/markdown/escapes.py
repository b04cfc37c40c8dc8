"""Rendered Markdown as text with escape sequences, for a terminal without the app."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache

from rich.color import ColorSystem
from textual.color import Color
from textual.content import Content
from textual.style import Style

# The terminal's own colours, as in the app's theme "terminal".
STYLES = {
    ".strong": Style(bold=True),
    ".em": Style(italic=True),
    ".strike": Style(strike=True),
    ".code": Style(foreground=Color.parse("ansi_cyan")),
    ".link": Style(underline=True),
    ".maths": Style(italic=True),
    ".unfinished": Style(foreground=Color.parse("ansi_cyan")),
    ".heading-1": Style(foreground=Color.parse("ansi_blue"), bold=True),
    ".heading-2": Style(foreground=Color.parse("ansi_blue"), bold=True),
    ".heading-3": Style(foreground=Color.parse("ansi_cyan"), bold=True),
    ".heading-4": Style(bold=True),
    ".heading-5": Style(bold=True, italic=True),
    ".marker": Style(foreground=Color.parse("ansi_blue")),
    ".faint": Style(dim=True),
    ".code-comment": Style(dim=True, italic=True),
    ".code-keyword": Style(foreground=Color.parse("ansi_magenta")),
    ".code-string": Style(foreground=Color.parse("ansi_green")),
    ".code-number": Style(foreground=Color.parse("ansi_yellow")),
    ".code-name": Style(foreground=Color.parse("ansi_blue")),
    ".code-builtin": Style(foreground=Color.parse("ansi_cyan")),
    ".code-deleted": Style(foreground=Color.parse("ansi_red")),
    ".code-inserted": Style(foreground=Color.parse("ansi_green")),
}
"""Of the names that spans have; others, such as the ground of code, are the app's alone."""


def as_escapes(pieces: Iterable[Content]) -> str:
    """Return the text of pieces, with a newline between two of them; without colours if NO_COLOR is set."""
    colourless = bool(os.environ.get("NO_COLOR"))
    return "\n".join("".join(_escaped(piece, colourless)) for piece in pieces)


def _escaped(piece: Content, colourless: bool) -> Iterator[str]:
    for text, style in piece.render(Style.null(), end="", parse_style=_style):
        shown = style.without_color if colourless else style
        yield shown.rich_style.render(text, color_system=ColorSystem.STANDARD)


@lru_cache(maxsize=64)
def _style(name: str | Style) -> Style:
    return STYLES.get(name, Style.null()) if isinstance(name, str) else name
