"""A list of conversations or search results: its rows, and the widget that draws the visible ones."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
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

from edgechat.base.text import local_time, one_line
from edgechat.chat.records import TRASH_DAYS, Chat, Headline, Hit, Listed
from edgechat.tui.widgets.lists import cursor_style

_GUTTER = 2
_SNIPPET_LINES, _NARROW, _BEFORE = 2, 44, 12
_TITLE = 200
_CURRENT, _WRITING = "▌", "●"


@dataclass(frozen=True, slots=True)
class HeadingRow:
    """A heading above a group of rows."""

    text: str


@dataclass(frozen=True, slots=True)
class NoteRow:
    """A message shown instead of rows."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A conversation."""

    chat: Chat
    writing: bool = False
    note: str = ""
    """Text to show at the end of the row."""

    @property
    def key(self) -> tuple[str, str]:
        """The key that identifies the row after the list has been reloaded."""
        return self.chat.id, ""


@dataclass(frozen=True, slots=True)
class HitRow:
    """A search result: a turn or title that contains the words searched for."""

    hit: Hit

    @property
    def chat(self) -> Chat:
        return self.hit.chat

    @property
    def key(self) -> tuple[str, str]:
        return self.hit.chat.id, self.hit.turn_id


SelectableRow = ChatRow | HitRow
"""A row that the cursor can be on."""
Row = HeadingRow | NoteRow | SelectableRow


def rows_of(headlines: Sequence[Headline], today: date) -> list[Row]:
    """Return the conversations grouped under headings by date of last use, pinned ones first."""
    rows: list[Row] = []
    last = ""
    for headline in headlines:
        chat = headline.chat
        heading = "Pinned" if chat.pinned else _day(local_time(chat.updated_at).date(), today)
        if heading != last:
            rows.append(HeadingRow(heading))
            last = heading
        rows.append(ChatRow(chat, headline.writing))
    return rows


def rows_of_hits(hits: Sequence[Hit], limit: int) -> list[Row]:
    """Return the hits under a heading that says how many there are. limit: how many were requested."""
    if not hits:
        return [NoteRow("Nothing found")]
    count = f"Best {limit} results" if len(hits) >= limit else f"{len(hits)} found"
    return [HeadingRow(count), *map(HitRow, hits)]


def rows_of_trash(trashed: Sequence[Listed], now: float) -> list[Row]:
    """Return the conversations in the trash, each with the time left until its permanent deletion."""
    if not trashed:
        return [NoteRow(f"The trash is empty. Deleted conversations stay here for {TRASH_DAYS} days.")]
    rows = (ChatRow(item.chat, note=_time_left(item.chat, now)) for item in trashed)
    return [HeadingRow("Trash · deleted in"), *rows]


def height_of(row: Row, width: int, *, is_first: bool) -> int:
    """Return the number of lines that `lines_of` would return."""
    if isinstance(row, HitRow):
        return 2 + len(_snippet(row.hit, width))
    if isinstance(row, NoteRow):
        return len(_note(row, width))
    return 2 if isinstance(row, HeadingRow) and not is_first else 1


def lines_of(row: Row, width: int, *, is_first: bool, is_current: bool, writing: bool) -> list[Content]:
    """Return a row's lines, no wider than `width`, with spans named after their meaning, such as '.faint'."""
    if isinstance(row, HeadingRow):
        heading = Content(" " * _GUTTER + row.text).truncate(width, ellipsis=True).stylize(".heading")
        return [heading] if is_first else [Content(""), heading]
    if isinstance(row, NoteRow):
        return _note(row, width)
    if isinstance(row, ChatRow):
        end = Content(f"{row.note} ").stylize(".faint") if row.note else Content("")
        end = Content(f"{_WRITING} ").stylize(".writing") if writing else end
        return [_title(row.chat, width, end, is_current)]
    when = Content(f"{_when(local_time(row.hit.created_at), datetime.now())} ").stylize(".faint")
    return [_title(row.chat, width, when, is_current, strong=True), *_snippet(row.hit, width), Content("")]


def _note(note: NoteRow, width: int) -> list[Content]:
    lines = Content(note.text).stylize(".faint").wrap(max(8, width - _GUTTER - 1))
    return [Content.assemble(" " * _GUTTER, line) for line in lines]


def _title(chat: Chat, width: int, right: Content, is_current: bool, *, strong: bool = False) -> Content:
    room = max(4, width - _GUTTER - right.cell_length - 1)
    title = Content(one_line(chat.title, _TITLE) or "Untitled").truncate(room, ellipsis=True)
    if strong or is_current:
        title = title.stylize(".strong")
    gutter = Content(f"{_CURRENT} ").stylize(".marker") if is_current else Content(" " * _GUTTER)
    gap = " " * max(1, width - _GUTTER - title.cell_length - right.cell_length)
    return Content.assemble(gutter, title, gap, right).truncate(width)


def _snippet(hit: Hit, width: int) -> list[Content]:
    text = Content(hit.snippet)
    for start, end in hit.marks:
        text = text.stylize(".found", start, end)
    room = max(8, width - _GUTTER - 1)
    n_lines = _SNIPPET_LINES + (width < _NARROW)
    if hit.marks and hit.marks[-1][1] > room * n_lines:
        text = _from_first_mark(text, hit)
    lines = text.wrap(room)
    if len(lines) > n_lines:
        last = lines[n_lines - 1].rstrip().truncate(room - 1)
        lines = [*lines[: n_lines - 1], Content.assemble(last, "…")]
    return [Content.assemble(" " * _GUTTER, line) for line in lines]


def _from_first_mark(text: Content, hit: Hit) -> Content:
    """Drop the words before the first mark, keeping a few for context."""
    begin = hit.snippet.find(" ", max(0, hit.marks[0][0] - _BEFORE), hit.marks[0][0])
    return Content.assemble("…", text[begin + 1 :]) if begin > 0 else text


def _time_left(chat: Chat, now: float) -> str:
    passed = (now - (chat.trashed_at or now)) / 86400
    days = min(TRASH_DAYS, max(1, math.ceil(TRASH_DAYS - passed)))
    return f"{days} day{'s' * (days > 1)}"


def _day(day: date, today: date) -> str:
    days = (today - day).days
    if days <= 1:
        return "Yesterday" if days == 1 else "Today"
    return "Last 7 days" if days <= 7 else "Older"


def _when(moment: datetime, now: datetime) -> str:
    if moment.date() == now.date():
        return f"{moment:%H:%M}"
    return f"{moment.day} {moment:%b}" + f" {moment.year}" * (moment.year != now.year)


class ChatList(ScrollView, can_focus=True):
    """A list of rows with a cursor. Posts the user's requests, but changes nothing itself."""

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
        """A request from the user.

        The sidebar handles 'search', 'list', 'trash' and 'leave', as well as 'choose' and 'rename' for a row.
        The screen handles 'close', as well as 'open', 'retitle', 'pin', 'delete', 'export', 'restore' and
        'purge' for a row.
        """

        action: str
        row: SelectableRow | None = None
        text: str = ""
        """The new title, or the words to search for."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: Sequence[Row] = ()
        self._tops: list[int] = [0]
        self._cursor = 0
        self._current: str | None = None
        self._writing: frozenset[str] = frozenset()
        self._width = 0
        self._in_trash = False

    # Content.

    def show(self, rows: Sequence[Row], *, from_top: bool = False, in_trash: bool = False) -> None:
        """Replace the rows. The cursor stays on its row or, if that is gone, at its position.

        Initially, the cursor is on the open conversation, if it is listed.
        in_trash: whether the rows are in the trash.
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
        """Mark the open conversation and any others with a reply in progress."""
        if (current, writing) != (self._current, self._writing):
            self._current, self._writing = current, writing
            self.refresh()

    def point_at_current(self) -> None:
        """Move the cursor to the open conversation, or to the first row if it is not listed."""
        index = self._index_of((self._current, ""))
        self._go_to(self._nearest(0) if index is None else index)

    def _index_of(self, key: tuple[str | None, str]) -> int | None:
        return next(
            (at for at, row in enumerate(self._rows) if isinstance(row, SelectableRow) and row.key == key),
            None,
        )

    @property
    def row(self) -> SelectableRow | None:
        row = self._rows[self._cursor] if self._cursor < len(self._rows) else None
        return row if isinstance(row, SelectableRow) else None

    def line_of_cursor(self) -> int:
        """Return the line of the cursor's row, counted from the top of the visible part."""
        return self._tops[self._cursor] - self.scroll_offset.y

    # Drawing.

    def on_resize(self) -> None:
        if self._width != self.scrollable_content_region.width:
            self._lay_out()

    def _lay_out(self) -> None:
        self._width = self.scrollable_content_region.width
        # Until the width is known, each row gets one line, so that every row has a top.
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
        """Whether the list or the search field has the focus; Enter opens the cursor's row from either."""
        focused = self.screen.focused
        return focused is not None and self.parent in focused.ancestors

    def _named_style(self, name: str | Style) -> Style:
        if isinstance(name, Style):
            return name
        return self.get_visual_style(name[1:], partial=True) if name.startswith(".") else Style.null()

    def _without_colour(self, name: str | Style) -> Style:
        # The cursor's background may have the same colour.
        style = self._named_style(name)
        return Style(bold=style.bold, dim=style.dim, underline=style.underline)

    # The cursor.

    def _nearest(self, at: int) -> int:
        """Return the first selectable row at or after `at`, or else the last one before it."""
        places = [*range(at, len(self._rows)), *range(min(at, len(self._rows)) - 1, -1, -1)]
        return next((place for place in places if isinstance(self._rows[place], SelectableRow)), 0)

    def _go_to(self, at: int) -> None:
        self._cursor = at
        self._show_cursor()
        self.refresh()

    def _show_cursor(self) -> None:
        if self._cursor < len(self._rows):
            # Include the heading if it is the row above.
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
        line = self._tops[self._cursor] + by * max(1, self.size.height - 1)
        at = bisect_right(self._tops, max(0, line)) - 1
        self._go_to(self._nearest(min(at, len(self._rows) - 1)) if self._rows else 0)

    def action_end(self, at: int) -> None:
        """Move the cursor to the first row (0) or the last (-1)."""
        self._go_to(self._nearest(at % len(self._rows)) if self._rows else 0)

    # Requests.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow requests about a row only if one is selected, and only where they apply (list or trash)."""
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
        """Move the cursor to the row that was clicked and, unless it is in the trash, open it."""
        at = bisect_right(self._tops, event.y + self.scroll_offset.y) - 1
        if 0 <= at < len(self._rows) and isinstance(self._rows[at], SelectableRow):
            self._go_to(at)
            self.action_request("choose")
