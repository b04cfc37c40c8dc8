"""Blocks and rendered lines: plain data that a single widget shows.

Textual's own Markdown widget creates a widget for each paragraph and list item, and rebuilds a growing list
for every added word, which takes 100 ms for 24 items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from textual.content import Content

NOTHING = Content("")
COPY_CODE = "copy-code"
"""Key in a style's metadata. Clicking text in that style copies the code."""

Row = tuple[Content, ...]


class RenderedLine(NamedTuple):
    """A line on the screen, along with what is copied when it is selected."""

    content: Content
    lead: int = 0
    """Number of characters at its start that form a marker and are not copied."""
    trail: int = 0
    """Number of characters at its end that are padding and are not copied."""
    joint: str = "\n"
    """Separator from the line above when copied, or '' if this continues a folded line."""
    code: str = ""
    """Code to copy when the line's "copy" label is clicked."""

    @classmethod
    def decoration(cls, content: Content, trail: int = 0, code: str = "") -> RenderedLine:
        """Return a line that is never copied."""
        return cls(content, len(content), trail, "", code)


EMPTY = RenderedLine(Content(""))


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, heading, code block, formula, table or rule, with its position in lists and quotes."""

    kind: Literal["text", "heading", "code", "maths", "table", "rule"]
    content: Content = NOTHING
    """The text; for code and formulas, the plain source."""
    first: str = ""
    """Prefix of the first line: a list item's bullet or number, or a quote's bar."""
    rest: str = ""
    """Prefix of the other lines, as wide as `first`."""
    gap: bool = True
    """Whether a blank line separates it from the block above."""
    level: int = 0
    """For headings: 1 to 6."""
    language: str = ""
    """For code: the fence's info string, which starts with the language."""
    formula: str = ""
    """For maths: the text between the delimiters, or '' if the closing one is missing."""
    rows: tuple[Row, ...] = ()
    """For tables: the rows, the first of which is the header."""
    aligns: tuple[str, ...] = ()
    """For tables: each column's alignment, "left", "center" or "right"."""
