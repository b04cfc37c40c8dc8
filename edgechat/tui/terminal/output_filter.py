"""The last filter of what is drawn: Textual's own widgets accept any text."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from edgechat.base.text import printable


class OutputFilter(LineFilter):
    """Removes control characters, which take no cell, from lines.

    Our own widgets show them (`Area`, `LineField`) or have removed them before.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [segment if segment.text.isprintable() else _without_controls(segment) for segment in segments]


def _without_controls(segment: Segment) -> Segment:
    return Segment(printable(segment.text).replace("\n", ""), segment.style, segment.control)
