"""A section of the engine room: a heading, aligned lines, and an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.content import Content

from edgechat.tui.markdown.blocks import EMPTY, RenderedLine
from edgechat.tui.transcript.sheet import Sheet

LABEL = 12
"""Width of the labels on the left, in cells."""
_WIDEST = 64
"""Maximum width of a table, in cells. Rows are hard to follow if the columns are far apart."""
_COLUMN = 10
NO_MODEL = "No model is loaded."

Cell = str | tuple[str, str] | Content


class Section(Sheet):
    """Lines below a heading. Subclasses return the lines from `body`, and call `changed` to redraw."""

    DEFAULT_CSS = """
    Section {
        .pinned { color: $accent; }
        .own { color: $success; }
        .shared { color: $primary; }
        .kept { color: $secondary; }
        .weights { color: $primary; }
        .cache { color: $success; }
        .compute { color: $warning; }
        .spark { color: $success; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "pinned",
        "own",
        "shared",
        "kept",
        "weights",
        "cache",
        "compute",
        "spark",
    }
    TITLE: ClassVar[str]
    MEANING: ClassVar[str]
    """The explanation, in a sentence or two."""

    def __init__(self) -> None:
        super().__init__()
        self.explained = True
        """Whether the explanation is shown."""

    def body(self, width: int) -> list[Content]:
        """Return the lines below the heading."""
        raise NotImplementedError

    def aside(self) -> str:
        """Return short text to show at the right end of the heading."""
        return ""

    def lay_out(self, width: int) -> list[RenderedLine]:
        aside = self.aside()
        gap = width - len(self.TITLE) - len(aside) - 2
        rule = (f" {'─' * gap} ", ".edge") if gap > 0 else ""
        lines = [
            RenderedLine(Content.assemble((self.TITLE, ".heading"), rule, (aside, ".faint") if rule else ""))
        ]
        lines += [RenderedLine(line.truncate(width, ellipsis=True)) for line in self.body(width)]
        if self.explained:
            lines += [EMPTY, *(RenderedLine(line) for line in wrapped(self.MEANING, width, ".faint"))]
        return lines


def row(label: str, *parts: Cell) -> Content:
    """Return a line that starts with a label."""
    return Content.assemble((f"{label:<{LABEL}}", ".faint"), *parts)


def fitting(width: int, line: Content, *shorter: Content) -> Content:
    """Return the first of these lines that fits, or else the last."""
    lines = (line, *shorter)
    return next((line for line in lines if line.cell_length <= width), lines[-1])


def table(
    head: Sequence[str], rows: Sequence[tuple[Cell, Sequence[str]]], width: int, corner: str = ""
) -> list[Content]:
    """Return a table with labels on the left, then right-aligned columns that share the width."""
    column = min(_COLUMN, max(5, (min(width, _WIDEST) - LABEL) // max(1, len(head))))
    heads = "".join(f"{name:>{column}}" for name in head)
    lines = [Content.assemble((f"{corner:<{LABEL}}{heads}", ".faint"))]
    for label, figures in rows:
        name = Content.assemble((label, ".faint") if isinstance(label, str) else label)
        gap = " " * max(0, LABEL - name.cell_length)
        lines.append(Content.assemble(name, gap, "".join(f"{figure:>{column}}" for figure in figures)))
    return lines


def wrapped(text: str, width: int, style: str = "") -> list[Content]:
    """Return text wrapped to the width."""
    return Content(text).stylize(style).wrap(max(8, width))
