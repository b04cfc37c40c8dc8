"""The questions that wait until the present answer has ended, above the prompt box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.app import RenderResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from edgechat.base.text import one_line

_SHOWN = 4
_HINT = "  ↑ takes it back"


class WaitingQuestions(Widget):
    """A line for each question; a click on one takes it back into the prompt."""

    DEFAULT_CSS = """
    WaitingQuestions { height: auto; display: none; padding: 0 2; }
    WaitingQuestions.-some { display: block; }
    """

    @dataclass
    class Recalled(Message):
        """A question was clicked."""

        number: int

    def __init__(self) -> None:
        super().__init__()
        self._questions: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not self._questions

    def show(self, questions: Sequence[str]) -> None:
        """Show these in place of the present ones, in the order in which they will be sent."""
        self._questions = list(questions)
        self.set_class(bool(questions), "-some")
        self.refresh(layout=True)

    @property
    def _first(self) -> int:
        """The number of the first one that is shown: of many, the last ones are."""
        return max(0, len(self._questions) - _SHOWN)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(_SHOWN, len(self._questions))

    def render(self) -> RenderResult:
        lines: list[Content] = []
        for number, question in enumerate(self._questions[self._first :], self._first + 1):
            hint = _HINT if number == len(self._questions) else ""
            room = max(8, self.size.width - len(hint) - len(f"{number}. waits: "))
            lines.append(Content(f"{number}. waits: {one_line(question, room)}{hint}").stylize("dim"))
        return Content("\n").join(lines)

    def on_click(self, event: events.Click) -> None:
        if self._first + event.y < len(self._questions):
            self.post_message(self.Recalled(self._first + event.y))
