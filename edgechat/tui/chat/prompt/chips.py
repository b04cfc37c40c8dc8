"""The attachments of the next question, above the prompt box."""

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
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class Chip:
    """Something that is sent with the next question, or (a problem) cannot be."""

    label: str
    is_problem: bool = False

    @property
    def text(self) -> str:
        return f"{self.label} ✕"


def chip_of(attached: Attachment | AttachedImage) -> Chip:
    """Return the chip of a text or an image."""
    from edgechat.chat.records import AttachedImage  # not needed for the first frame
    from edgechat.tui.chat.prompt.reading_time import tokens_of

    name = one_line(attached.name, _LONGEST)
    if isinstance(attached, AttachedImage):
        return Chip(f"▣ {name} {attached.size}")
    return Chip(f"▤ {name} ~{tokens_of(attached):,} tokens")


class Chips(Widget):
    """What is sent with the next question, side by side; a click removes it."""

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
        """Return the chips that there is room for: the first ones."""
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
    """Return the cells of a chip, its frame included."""
    return Content(chip.text).cell_length + 4
