"""Blocks of a text, and rendered lines: plain data, shown by a single widget.

Textual's own Markdown widget makes a widget of every paragraph and list item, and rebuilds a growing list
with each word: 100 ms for 24 items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from textual.content import Content

NOTHING = Content("")
COPY_CODE = "copy-code"
"""Key in a style's meta data; a click there copies code."""

Row = tuple[Content, ...]


class RenderedLine(NamedTuple):
    """A line on the screen, and the part of it that is copied."""

    content: Content
    lead: int = 0
    """Number of characters at its start that are markers and are not copied."""
    trail: int = 0
    """Number of characters at its end that are filling and are not copied."""
    joint: str = "\n"
    """Separator from the line above in a copy; empty for the rest of a folded line."""
    code: str = ""
    """Code copied by a click on its "copy"."""

    @classmethod
    def decoration(cls, content: Content, trail: int = 0, code: str = "") -> RenderedLine:
        """Return a line of which nothing is copied."""
        return cls(content, len(content), trail, "", code)


EMPTY = RenderedLine(Content(""))


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, heading, piece of code, formula, table or rule, with its place in lists and quotes."""

    kind: Literal["text", "heading", "code", "maths", "table", "rule"]
    content: Content = NOTHING
    """Text; of code and formulas, the plain source."""
    first: str = ""
    """Prefix of the first line: bullet or number of a list item, bar of a quote."""
    rest: str = ""
    """Prefix of the other lines, as wide as `first`."""
    gap: bool = True
    """Whether an empty line separates it from what is above."""
    level: int = 0
    """Of a heading: 1 to 6."""
    language: str = ""
    """Of code: the info string of its fence, which begins with the language."""
    formula: str = ""
    """Of maths: text between the delimiters; empty if the closing one is missing."""
    rows: tuple[Row, ...] = ()
    """Of a table; the first one is the header."""
    aligns: tuple[str, ...] = ()
    """Of the columns of a table: "left", "center" or "right"."""
