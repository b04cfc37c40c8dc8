"""The rows of the list of conversations, and the lines that each takes at a given width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from textual.content import Content

from edgechat.base.text import local_time, one_line
from edgechat.chat.records import TRASH_DAYS, Chat, Headline, Hit, Listed

_GUTTER = 2
_SNIPPET_LINES, _NARROW, _BEFORE = 2, 44, 12
_TITLE = 200
_CURRENT, _WRITING = "▌", "●"


@dataclass(frozen=True, slots=True)
class HeadingRow:
    """A heading over the rows that follow."""

    text: str


@dataclass(frozen=True, slots=True)
class NoteRow:
    """A text in place of rows."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A conversation."""

    chat: Chat
    writing: bool = False
    note: str = ""
    """A text at its end."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the row when the list is read again."""
        return self.chat.id, ""


@dataclass(frozen=True, slots=True)
class HitRow:
    """A turn, or a title, in which the searched words occur."""

    hit: Hit

    @property
    def chat(self) -> Chat:
        return self.hit.chat

    @property
    def key(self) -> tuple[str, str]:
        return self.hit.chat.id, self.hit.turn_id


SelectableRow = ChatRow | HitRow
"""A row that the cursor may be on."""
Row = HeadingRow | NoteRow | SelectableRow


def rows_of(headlines: Sequence[Headline], today: date) -> list[Row]:
    """Return the conversations under headings that say when they were last used, pinned ones first."""
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
    """Return the hits under a heading that counts them. limit: how many were requested."""
    if not hits:
        return [NoteRow("Nothing found")]
    count = f"Best {limit} results" if len(hits) >= limit else f"{len(hits)} found"
    return [HeadingRow(count), *map(HitRow, hits)]


def rows_of_trash(trashed: Sequence[Listed], now: float) -> list[Row]:
    """Return the conversations in the trash, each with the days until it is deleted for good."""
    if not trashed:
        return [NoteRow(f"The trash is empty. Deleted conversations stay here for {TRASH_DAYS} days.")]
    rows = (ChatRow(item.chat, note=_time_left(item.chat, now)) for item in trashed)
    return [HeadingRow("Trash · deleted in"), *rows]


def height_of(row: Row, width: int, *, is_first: bool) -> int:
    """Return the number of lines that `lines_of` returns."""
    if isinstance(row, HitRow):
        return 2 + len(_snippet(row.hit, width))
    if isinstance(row, NoteRow):
        return len(_note(row, width))
    return 2 if isinstance(row, HeadingRow) and not is_first else 1


def lines_of(row: Row, width: int, *, is_first: bool, is_current: bool, writing: bool) -> list[Content]:
    """Return the lines of a row, each no wider than `width`; their styles are named ('.faint')."""
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
    """Drop the words before the first mark, except those just before it."""
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
