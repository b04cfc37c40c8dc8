"""Widgets above the prompt box: waiting questions, completions, and attachments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.app import RenderResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from edgechat.base.text import one_line

if TYPE_CHECKING:
    from edgechat.chat.records import AttachedImage, Attachment


_GAP = 1
_LONGEST = 30
"""Maximum length of a name, in characters; longer names are shortened."""


@dataclass(frozen=True, slots=True)
class Chip:
    """An attachment to the next question, or a problem with one."""

    label: str
    is_problem: bool = False

    @property
    def text(self) -> str:
        return f"{self.label} ✕"


def chip_of(attached: Attachment | AttachedImage) -> Chip:
    """Return the chip for an attached text or image."""
    from edgechat.chat.records import AttachedImage  # not needed for the first frame
    from edgechat.tui.chat.prompt.reading_time import tokens_of

    name = one_line(attached.name, _LONGEST)
    if isinstance(attached, AttachedImage):
        return Chip(f"▣ {name} {attached.size}")
    return Chip(f"▤ {name} ~{tokens_of(attached):,} tokens")


class Chips(Widget):
    """Attachments to the next question, side by side. Clicking one removes it."""

    DEFAULT_CSS = """
    Chips { height: 3; display: none; }
    Chips.-some { display: block; }
    """

    @dataclass
    class Removed(Message):
        """A chip was clicked."""

        number: int

    def __init__(self) -> None:
        super().__init__()
        self._chips: Sequence[Chip] = ()

    def show(self, chips: Sequence[Chip]) -> None:
        self._chips = chips
        self.set_class(bool(chips), "-some")
        self.refresh()

    def render(self) -> RenderResult:
        shown = self._fitting()
        more = len(self._chips) - len(shown)
        rest = Content.styled(f" and {more} more" if more else "", "dim")
        middle = [
            Content.assemble(("│ ", "dim"), (chip.text, "$error" if chip.is_problem else ""), (" │", "dim"))
            for chip in shown
        ]
        row = Content(" " * _GAP).join(middle) + rest
        if self.content_size.height < 3:
            return row
        edges = [
            Content.styled(
                (" " * _GAP).join(f"{left}{'─' * (_width(chip) - 2)}{right}" for chip in shown), "dim"
            )
            for left, right in ("╭╮", "╰╯")
        ]
        return Content("\n").join([edges[0], row, edges[1]])

    def _fitting(self) -> list[Chip]:
        """Return the chips that fit, starting with the first."""
        room = self.content_size.width
        shown: list[Chip] = []
        for number, chip in enumerate(self._chips):
            is_last = number == len(self._chips) - 1
            room -= _width(chip) + _GAP * bool(shown)
            if room < (0 if is_last else len(" and 19 more")) and shown:
                break
            shown.append(chip)
        return shown

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        x = offset.x
        for number, chip in enumerate(self._fitting()):
            if 0 <= x < _width(chip):
                self.post_message(self.Removed(number))
                return
            x -= _width(chip) + _GAP


def _width(chip: Chip) -> int:
    """Return a chip's width in cells, including its frame."""
    return Content(chip.text).cell_length + 4


_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion for the typed text."""

    text: str
    """The text that replaces the typed text from position `start` on."""
    start: int
    label: str
    about: str = ""
    more: bool = False
    """Whether it can be completed further, like a folder's path."""


class Completions(Widget):
    """A list of completions, one of which is selected; hidden if empty.

    Its frame shows the position in the list, and what the keys do.
    """

    DEFAULT_CSS = """
    Completions {
        height: auto; max-height: 10; display: none; padding: 0 1;
        border: round $border-blurred; border-subtitle-color: $foreground; border-subtitle-style: dim;
    }
    Completions.-open { display: block; }
    """

    class Clicked(Message):
        """A choice was clicked."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: Sequence[Suggestion] = ()
        self.typed = ""
        """The text before the cursor that the completions belong to."""
        self.index = 0

    @property
    def is_open(self) -> bool:
        return bool(self.choices)

    @property
    def choice(self) -> Suggestion | None:
        return self.choices[self.index] if self.choices else None

    def show(self, choices: Sequence[Suggestion], typed: str) -> None:
        """Show completions for the typed text, or close the list if there are none."""
        self.typed = typed
        if tuple(choices) != tuple(self.choices):
            self.choices, self.index = tuple(choices), 0
            self.set_class(self.is_open, "-open")
            self._show_position()
            self.refresh(layout=True)

    def move(self, by: int) -> None:
        if self.choices:
            self.index = (self.index + by) % len(self.choices)
            self._show_position()
            self.refresh()

    def _show_position(self) -> None:
        position = f"{self.index + 1} of {len(self.choices)}"
        self.border_subtitle = f"{position} · ↑↓ choose · Tab takes it · Esc closes"

    @property
    def _shown(self) -> int:
        return self.content_size.height or _SHOWN

    @property
    def _top(self) -> int:
        return max(0, min(self.index - self._shown // 2, len(self.choices) - self._shown))

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(_SHOWN, len(self.choices))

    def render(self) -> RenderResult:
        shown = self.choices[self._top : self._top + self._shown]
        width = max((len(suggestion.label) for suggestion in self.choices), default=0)
        lines = []
        for index, suggestion in enumerate(shown, self._top):
            is_current = index == self.index
            mark = ("› ", "bold $accent") if is_current else "  "
            label = (suggestion.label.ljust(min(width, 34)), "bold" if is_current else "")
            room = max(0, self.size.width - min(width, 34) - 4)
            about = one_line(suggestion.about, room) if room > 8 else ""
            lines.append(Content.assemble(mark, label, ("  " + about, "dim")))
        return Content("\n").join(lines)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and self._top + offset.y < len(self.choices):
            self.index = self._top + offset.y
            self.post_message(self.Clicked())


_MOST_QUESTIONS = 4
_HINT = "  ↑ takes it back"


class WaitingQuestions(Widget):
    """A line for each waiting question. Clicking one returns it to the prompt."""

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

    def show(self, questions: Sequence[str]) -> None:
        """Show these questions, given in the order in which they will be sent."""
        self._questions = list(questions)
        self.set_class(bool(questions), "-some")
        self.refresh(layout=True)

    @property
    def _first(self) -> int:
        """Index of the first question to show. If there are many, only the last ones are shown."""
        return max(0, len(self._questions) - _MOST_QUESTIONS)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(_MOST_QUESTIONS, len(self._questions))

    def render(self) -> RenderResult:
        lines: list[Content] = []
        for number, question in enumerate(self._questions[self._first :], self._first + 1):
            hint = _HINT if number == len(self._questions) else ""
            room = max(8, self.size.width - len(hint) - len(f"{number}. waiting: "))
            lines.append(Content(f"{number}. waiting: {one_line(question, room)}{hint}").stylize("dim"))
        return Content("\n").join(lines)

    def on_click(self, event: events.Click) -> None:
        if self._first + event.y < len(self._questions):
            self.post_message(self.Recalled(self._first + event.y))
