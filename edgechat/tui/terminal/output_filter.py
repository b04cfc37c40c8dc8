"""The last look at what is drawn, whoever draws it: Textual's own widgets take any text."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from edgechat.base.text import printable


class OutputFilter(LineFilter):
    """Leaves out of a line what a terminal would obey; such characters take no cell in it.

    Widgets of ours show them (`Area`, `LineField`) or have taken them out before.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """See Textual."""
        return [
            one if one.text.isprintable() else Segment(_plain(one.text), one.style, one.control)
            for one in segments
        ]


def _plain(text: str) -> str:
    return printable(text).replace("\n", "")
