"""The log: the last lines that the worker wrote."""

from __future__ import annotations

from typing import ClassVar

from textual.content import Content

from edgechat.base.text import one_line
from edgechat.tui.engine_room.section import Section, faint

_LINES = 12
_LONGEST = 500


class LogSection(Section):
    """The newest at the bottom."""

    TITLE: ClassVar[str] = "Log"
    MEANING: ClassVar[str] = "The output of the worker process, newest at the bottom."

    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []

    def show(self, log: str) -> None:
        """Show the end of a log."""
        text = [one_line(line, _LONGEST) for line in log.splitlines() if line.strip()][-_LINES:]
        if text != self._text:
            self._text = text
            self.changed()

    def body(self, width: int) -> list[Content]:
        """See `Section`."""
        if not self._text:
            return faint("The log is empty.", width)
        return [Content(line).truncate(width, ellipsis=True) for line in self._text]
