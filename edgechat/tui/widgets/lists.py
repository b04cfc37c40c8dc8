"""Lists of keyed lines, with a cursor drawn in a single colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events, on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option


def cursor_style(widget: Widget, part: str) -> Style:
    """Return the style of one of a widget's components.

    This is like `Widget.get_visual_style`, but preserves reverse video. Reversed components are not
    underlined.
    """
    style = widget.get_visual_style(part)
    is_reverse = widget.get_component_styles(part).text_style.reverse
    return style + Style(reverse=True, underline=False) if is_reverse else style


class CursorLine(OptionList):
    """A list whose cursor line has a single colour, as others may be illegible on its background."""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        index = next((part.style.meta.get("option") for part in strip if part.style is not None), None)
        if index is None or index != self.highlighted:
            return strip
        style = cursor_style(self, "option-list--option-highlighted").rich_style
        plain = RichStyle(
            color=style.color,
            bgcolor=style.bgcolor,
            underline=style.underline,
            reverse=style.reverse,
            dim=False,
        )
        return Strip([Segment(text, (style or plain) + plain) for text, style, _ in strip], strip.cell_length)


@dataclass(frozen=True, slots=True)
class ListLine:
    """A line of a list. Without a key, it is a heading, which the cursor skips."""

    text: Content
    key: str | None = None


class KeyedList(CursorLine, inherit_bindings=False):
    """A list that keeps the cursor on its key as lines come and go. The screen handles Enter."""

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
        self._list_lines: list[ListLine] = []

    @property
    def key(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None else None

    def show_lines(self, lines: Sequence[ListLine]) -> None:
        """Replace the lines; the cursor stays on the line with the same key, or else in the same place."""
        old_lines, self._list_lines = self._list_lines, list(lines)
        if [line.key for line in lines] == [line.key for line in old_lines]:
            for index, (new, old) in enumerate(zip(lines, old_lines, strict=True)):
                if not new.text.is_same(old.text) or new.text.spans != old.text.spans:
                    self.replace_option_prompt_at_index(index, new.text)
            return
        key, index, top = self.key, self.highlighted or 0, self.scroll_offset.y
        self.set_options(Option(line.text, id=line.key, disabled=line.key is None) for line in lines)
        self.scroll_to(y=top, animate=False)
        selectable = [index for index, line in enumerate(lines) if line.key is not None]
        self.highlighted = self._index_of(key)
        if self.highlighted is None and selectable:
            self.highlighted = min(selectable, key=lambda other: abs(other - index))

    def go_to(self, key: str) -> None:
        """Move the cursor to the line with this key, if there is one."""
        index = self._index_of(key)
        if index is not None:
            self.highlighted = index

    def _index_of(self, key: str | None) -> int | None:
        if key is None:
            return None
        return next((index for index, line in enumerate(self._list_lines) if line.key == key), None)

    @on(events.Click)
    def _point_or_select(self, event: events.Click) -> None:
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if (
            not isinstance(clicked, int)
            or clicked >= len(self._list_lines)
            or self._list_lines[clicked].key is None
        ):
            return
        if clicked == self.highlighted:
            self.action_select()
        else:
            self.highlighted = clicked
