"""Blocks of a text, and the lines that they become: plain data, which one widget shows.

Textual's own Markdown widget makes a widget of every paragraph and list item, and rebuilds a growing list
with each word: 100 ms for 24 items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from textual.content import Content

NOTHING = Content("")
COPY_CODE = "copy-code"
"""The key of a style's meta data where a click copies code."""

Row = tuple[Content, ...]


class RenderedLine(NamedTuple):
    """A line on the screen, and what of it is copied."""

    content: Content
    lead: int = 0
    """So many characters at its start are markers, which are not copied."""
    trail: int = 0
    """So many at its end are filling, which is not copied either."""
    joint: str = "\n"
    """What separates it from the line above in a copy: nothing, if it is the rest of a folded line."""
    code: str = ""
    """The code that a click on its "copy" copies."""

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
    """The text; of code and of formulas, the plain source."""
    first: str = ""
    """Precedes the first line: the bullet or number of a list item, the bar of a quote."""
    rest: str = ""
    """Precedes the other lines, as wide as `first`."""
    gap: bool = True
    """Whether an empty line separates it from what is above."""
    level: int = 0
    """Of a heading: 1 to 6."""
    language: str = ""
    """Of code: what its fence says, which begins with the name of the language."""
    formula: str = ""
    """Of maths: what stands between the delimiters; empty if the closing one is missing."""
    rows: tuple[Row, ...] = ()
    """Of a table; the first one is the header."""
    aligns: tuple[str, ...] = ()
    """Of the columns of a table: "left", "center" or "right"."""
