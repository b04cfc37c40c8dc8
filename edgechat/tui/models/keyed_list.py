"""A list whose lines are walked with the keys; a click goes to a line, a second one there chooses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.strip import Strip
from textual.widgets import OptionList
from textual.widgets.option_list import Option


@dataclass(frozen=True, slots=True)
class ListLine:
    """A line; without a key it is a heading, which is stepped over."""

    text: Content
    key: str | None = None


class KeyedList(OptionList, inherit_bindings=False):
    """Keeps its place by key while lines come and go. What Enter does is the screen's."""

    DEFAULT_CSS = """
    KeyedList, KeyedList:focus {
        height: 1fr;
        border: none;
        padding: 0;
        background: transparent;
        background-tint: transparent;
        scrollbar-size-vertical: 1;
        & > .option-list--option { padding: 0; }
        & > .option-list--option-disabled { color: $foreground; }
        & > .option-list--option-hover { background: transparent; text-style: underline; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "cursor_down", "Down", show=False),
        Binding("up,k", "cursor_up", "Up", show=False),
        Binding("home", "first", "First", show=False),
        Binding("end", "last", "Last", show=False),
        Binding("pagedown", "page_down", "Page down", show=False),
        Binding("pageup", "page_up", "Page up", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._shown: list[ListLine] = []

    @property
    def key(self) -> str | None:
        """The key of the line one is at."""
        option = self.highlighted_option
        return option.id if option is not None else None

    def show_lines(self, lines: Sequence[ListLine]) -> None:
        """Show these lines; the place stays at the line of the same key, else at the same height."""
        before, at = self.key, self.highlighted
        if [one.key for one in lines] == [one.key for one in self._shown]:
            for index, (new, old) in enumerate(zip(lines, self._shown, strict=True)):
                if not new.text.is_same(old.text) or new.text.spans != old.text.spans:
                    self.replace_option_prompt_at_index(index, new.text)
            self._shown = list(lines)
            return
        self._shown = list(lines)
        top = self.scroll_offset.y
        self.set_options(Option(one.text, id=one.key, disabled=one.key is None) for one in lines)
        self.scroll_to(y=top, animate=False)
        self.highlighted = self._place(before, at)

    def go_to(self, key: str) -> None:
        """Go to the line of that key, if it is there."""
        found = next((index for index, one in enumerate(self._shown) if one.key == key), None)
        if found is not None:
            self.highlighted = found

    def render_line(self, y: int) -> Strip:
        """See Textual. Where the cursor is there is no colour but its own, which others are not made for."""
        strip = super().render_line(y)
        at = next((part.style.meta.get("option") for part in strip if part.style is not None), None)
        if at is None or at != self.highlighted:
            return strip
        color = self.get_visual_style("option-list--option-highlighted").rich_style.color
        own = RichStyle(color=color, dim=False)
        return Strip([Segment(text, (style or own) + own) for text, style, _ in strip], strip.cell_length)

    def _place(self, key: str | None, at: int | None) -> int | None:
        there = [index for index, one in enumerate(self._shown) if one.key is not None]
        same = [index for index in there if key is not None and self._shown[index].key == key]
        if same or not there:
            return same[0] if same else None
        return min(there, key=lambda index: abs(index - (at or 0)))

    async def _on_click(self, event: events.Click) -> None:
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if not isinstance(clicked, int) or clicked >= len(self._shown) or self._shown[clicked].key is None:
            return
        if clicked == self.highlighted:
            self.action_select()
        else:
            self.highlighted = clicked
