"""The list of conversations as one widget that draws only the lines on the screen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style

from edgechat.tui.conversations.rows import ChatRow, HeadingRow, Row, SelectableRow, height_of, lines_of
from edgechat.tui.widgets.lists import cursor_style


class ChatList(ScrollView, can_focus=True):
    """Rows with a cursor. It changes nothing itself: it posts what the user requests."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    ChatList {
        height: 1fr;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        scrollbar-background: $surface;
        background: $surface;

        .heading { color: $secondary; }
        .strong { text-style: bold; }
        .faint { text-style: dim; }
        .marker { color: $primary; text-style: bold; }
        .writing { color: $success; }
        .found { color: $primary; text-style: bold underline; }
        .cursor {
            color: $block-cursor-foreground;
            background: $block-cursor-background;
            text-style: $block-cursor-text-style;
        }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "heading",
        "strong",
        "faint",
        "marker",
        "writing",
        "found",
        "cursor",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "request('choose')", "Open"),
        Binding("enter", "request('restore')", "Restore"),
        Binding("slash", "request('search')", "Search", key_display="/"),
        Binding("r", "request('rename')", "Rename"),
        Binding("p", "request('pin')", "Pin"),
        Binding("d,delete", "request('delete')", "Delete"),
        Binding("d,delete", "request('purge')", "Delete"),
        Binding("x", "request('export')", "Export"),
        Binding("t", "request('trash')", "Trash"),
        Binding("escape", "request('leave')", "Back"),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "end(0)", "First", show=False),
        Binding("end", "end(-1)", "Last", show=False),
    ]

    @dataclass
    class Requested(Message):
        """The user requests an action.

        'choose', 'rename', 'pin', 'delete', 'export' a row; 'restore', 'purge' one in the trash; 'search',
        'trash', 'leave'.
        """

        action: str
        row: SelectableRow | None = None

    def __init__(self) -> None:
        super().__init__()
        self._rows: Sequence[Row] = ()
        self._tops: list[int] = [0]
        self._cursor = 0
        self._current: str | None = None
        self._writing: frozenset[str] = frozenset()
        self._width = 0
        self._in_trash = False

    # What is shown.

    def show(self, rows: Sequence[Row], *, from_top: bool = False, in_trash: bool = False) -> None:
        """Show other rows; the cursor stays on its row, or where that was.

        At first it is on the conversation that is open, if that is listed. in_trash: they are in the trash.
        """
        self._in_trash = in_trash
        key = self.row.key if self.row is not None else (self._current, "")
        self._rows = rows
        index = self._index_of(key)
        self._cursor = self._nearest(0 if from_top else self._cursor if index is None else index)
        self._lay_out()
        if from_top:
            self.scroll_home(animate=False)
        self.refresh_bindings()

    def mark(self, current: str | None, writing: frozenset[str]) -> None:
        """Mark the conversation that is open, and those in which a reply is being written."""
        if (current, writing) != (self._current, self._writing):
            self._current, self._writing = current, writing
            self.refresh()

    def point_at_current(self) -> None:
        """Put the cursor on the conversation that is open, if it is listed."""
        index = self._index_of((self._current, ""))
        self._go_to(self._nearest(0) if index is None else index)

    def _index_of(self, key: tuple[str | None, str]) -> int | None:
        return next(
            (at for at, row in enumerate(self._rows) if isinstance(row, SelectableRow) and row.key == key),
            None,
        )

    @property
    def row(self) -> SelectableRow | None:
        """The row at the cursor."""
        row = self._rows[self._cursor] if self._cursor < len(self._rows) else None
        return row if isinstance(row, SelectableRow) else None

    def line_of_cursor(self) -> int:
        """Return how many lines the row at the cursor is below the top of the visible part."""
        return self._tops[self._cursor] - self.scroll_offset.y

    # Drawing.

    def on_resize(self) -> None:
        if self._width != self.scrollable_content_region.width:
            self._lay_out()

    def _lay_out(self) -> None:
        self._width = self.scrollable_content_region.width
        # Each row gets a line even if the list has no width, so that every row has a top.
        heights = (
            height_of(row, self._width, is_first=at == 0) if self._width else 1
            for at, row in enumerate(self._rows)
        )
        self._tops = [0, *accumulate(heights)]
        if self._width:
            self.virtual_size = Size(self._width, self._tops[-1])
            self._show_cursor()
        self.refresh()

    def _lines(self, at: int) -> list[Content]:
        row = self._rows[at]
        is_current = isinstance(row, SelectableRow) and row.chat.id == self._current
        writing = isinstance(row, ChatRow) and (row.writing or row.chat.id in self._writing)
        return lines_of(row, self._width, is_first=at == 0, is_current=is_current, writing=writing)

    def render_line(self, y: int) -> Strip:
        base, width = self.visual_style, self.scrollable_content_region.width
        line = y + self.scroll_offset.y
        if line >= self._tops[-1] or not self._rows:
            return Strip.blank(width, base.rich_style)
        at = bisect_right(self._tops, line) - 1
        content = self._lines(at)[line - self._tops[at]]
        named = self._named_style
        if (
            at == self._cursor
            and content
            and self._shows_cursor
            and isinstance(self._rows[at], SelectableRow)
        ):
            base, named = cursor_style(self, "cursor"), self._without_colour
        rendered = content.render(base, end="", parse_style=named)
        strip = Strip([Segment(text, style.rich_style) for text, style in rendered], content.cell_length)
        return strip.crop_extend(0, width, base.rich_style)

    @property
    def _shows_cursor(self) -> bool:
        """Whether the list or the search field has the focus: Enter opens the row at the cursor from both."""
        focused = self.screen.focused
        return focused is not None and self.parent in focused.ancestors

    def _named_style(self, name: str | Style) -> Style:
        if isinstance(name, Style):
            return name
        return self.get_visual_style(name[1:], partial=True) if name.startswith(".") else Style.null()

    def _without_colour(self, name: str | Style) -> Style:
        # The background of the cursor may have the same colour.
        style = self._named_style(name)
        return Style(bold=style.bold, dim=style.dim, underline=style.underline)

    # The cursor.

    def _nearest(self, at: int) -> int:
        """Return the first row from `at` on that is no heading, else the last one before it."""
        places = [*range(at, len(self._rows)), *range(min(at, len(self._rows)) - 1, -1, -1)]
        return next((place for place in places if isinstance(self._rows[place], SelectableRow)), 0)

    def _go_to(self, at: int) -> None:
        self._cursor = at
        self._show_cursor()
        self.refresh()

    def _show_cursor(self) -> None:
        if self._cursor < len(self._rows):
            # Together with its heading, if that is the row above.
            above = self._cursor > 0 and isinstance(self._rows[self._cursor - 1], HeadingRow)
            top = self._tops[self._cursor - 1] if above else self._tops[self._cursor]
            region = Region(0, top, self._width, self._tops[self._cursor + 1] - top)
            self.scroll_to_region(region, animate=False, force=True)

    def action_move(self, by: int) -> None:
        at = self._cursor + by
        while 0 <= at < len(self._rows) and not isinstance(self._rows[at], SelectableRow):
            at += by
        if 0 <= at < len(self._rows):
            self._go_to(at)
        elif by < 0:
            self.post_message(self.Requested("search"))

    def action_page(self, by: int) -> None:
        """Move the cursor by as many lines as are visible."""
        line = self._tops[self._cursor] + by * max(1, self.size.height - 1)
        at = bisect_right(self._tops, max(0, line)) - 1
        self._go_to(self._nearest(min(at, len(self._rows) - 1)) if self._rows else 0)

    def action_end(self, at: int) -> None:
        """Move the cursor to the first row (0) or the last (-1)."""
        self._go_to(self._nearest(at % len(self._rows)) if self._rows else 0)

    # Requests.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow requests that need a row only if there is one, in the trash or outside it."""
        match parameters:
            case ("choose" | "rename" | "pin" | "delete" | "export",):
                return self.row is not None and not self._in_trash
            case ("restore" | "purge",):
                return self.row is not None and self._in_trash
        return parameters != ("trash",) or not self._in_trash

    def action_request(self, action: str) -> None:
        if self.check_action("request", (action,)):
            self.post_message(self.Requested(action, self.row))

    def on_click(self, event: events.Click) -> None:
        """Open the row under the mouse; in the trash, only go to it."""
        at = bisect_right(self._tops, event.y + self.scroll_offset.y) - 1
        if 0 <= at < len(self._rows) and isinstance(self._rows[at], SelectableRow):
            self._go_to(at)
            self.action_request("choose")
