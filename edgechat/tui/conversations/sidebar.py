"""Sidebar: the list of conversations with its search field."""

from __future__ import annotations

import asyncio
import time
from datetime import date
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.tui.conversations.listing import (
    ChatList,
    NoteRow,
    SelectableRow,
    rows_of,
    rows_of_hits,
    rows_of_trash,
)
from edgechat.tui.widgets.fields import LineField

if TYPE_CHECKING:
    from edgechat.chat.storage.store import Store

_FIRST_PAGE, _PAGE, _MOST = 100, 1000, 20_000
"""Maximum number of conversations on the first page, on later pages, and in total."""
_HITS = 50
_SEARCH_DELAY = 0.08
"""Seconds to wait after the last key before searching."""
POLL_INTERVAL = 2.0
"""Seconds between checks for changes made by other programs."""


class SearchField(LineField):
    """The search field above the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Open"),
        Binding("down", "request('list')", "To the list"),
        Binding("escape", "request('leave')", "Back"),
    ]

    def action_request(self, action: str) -> None:
        self.post_message(ChatList.Requested(action))


class TitleField(LineField):
    """A field for editing a title in place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Rename"),
        Binding("escape", "give_up", "Cancel"),
    ]

    def __init__(self, row: SelectableRow) -> None:
        super().__init__(one_line(row.chat.title), compact=True, select_on_focus=True, max_length=200)
        self.row = row

    def action_give_up(self) -> None:
        self.post_message(ChatList.Requested("list"))

    def on_blur(self) -> None:
        if self.app.app_focus:  # not when the terminal itself loses the focus
            self.remove()


class Sidebar(Widget):
    """Lists and searches the conversations in a store, or lists its trash.

    It changes nothing itself: it forwards the user's requests to the screen as `ChatList.Requested`. Call
    `show_current` after a change. While visible, it notices changes made by other programs.
    """

    DEFAULT_CSS = """
    Sidebar {
        width: 32;
        layers: base above;
        background: $surface;
        border-right: vkey $divider;
        &.-whole { border-right: none; }

        SearchField, SearchField:focus {
            height: 3;
            padding: 0 1;
            border: round $border-blurred;
            background: $surface;
            background-tint: transparent;
        }
        SearchField:focus { border: round $border; }
        TitleField, TitleField:focus {
            layer: above;
            background: $panel;
            background-tint: transparent;
            text-style: underline;
        }
    }
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._version: int | None = None
        self._in_trash = False
        """Whether to show the trash instead of the list."""
        self._shown = ("", False)
        """The query whose hits are shown ('' for all conversations), and whether the trash is shown."""
        self._opens_first = False
        """Whether to open the first hit as soon as it is found."""
        self._list = ChatList()
        self._field = SearchField(
            placeholder="Search all conversations", max_length=200, select_on_focus=False
        )

    def compose(self) -> ComposeResult:
        yield self._field
        yield self._list

    def on_mount(self) -> None:
        self.reload()
        self.set_interval(POLL_INTERVAL, self._check_for_changes)

    @on(events.DescendantFocus)
    @on(events.DescendantBlur)
    def _focus_changed(self) -> None:
        self._list.refresh()  # it shows its cursor only while focused

    # Called by the app.

    def show_current(self, chat_id: str | None, writing: frozenset[str] = frozenset()) -> None:
        """Mark the open conversation and any others with a reply in progress, and reload the list."""
        self._list.mark(chat_id, writing)
        if self.is_attached:
            self.reload()

    def focus_list(self) -> None:
        """Focus the list, with the cursor on the open conversation."""
        if self._in_trash:
            self._show_trash(False)
        elif self._shown == ("", False):
            self._list.point_at_current()
        self._list.focus()

    def focus_trash(self) -> None:
        self._field.value = ""
        self._show_trash(True)
        self._list.focus()

    def _show_trash(self, in_trash: bool) -> None:
        self._in_trash = in_trash
        self.reload()

    def search(self, words: str = "") -> None:
        """Focus the search field, and search for `words`, if any."""
        self._field.focus()
        if self._in_trash:
            self._show_trash(False)
        if words:
            self._field.value = one_line(words)
            self._field.cursor_position = len(self._field.value)

    def reload(self, wait: float = 0.0) -> None:
        """Reload the list once `wait` seconds have passed without another call."""
        self._read(self._field.value.strip(), self._in_trash, wait)

    # Reading.

    @work(group="read", exclusive=True)
    async def _read(self, words: str, in_trash: bool, wait: float) -> None:
        await asyncio.sleep(wait)
        is_new = (words, in_trash) != self._shown
        try:
            self._version = await self._store.version()
            if in_trash:
                rows = rows_of_trash(await self._store.listed(_MOST, trashed=True), time.time())
                self._list.show(rows, from_top=is_new, in_trash=True)
            elif words:
                rows = rows_of_hits(await self._store.search(words, _HITS), _HITS)
                self._list.show(rows, from_top=is_new)
            else:
                await self._read_list(from_top=is_new)
        except EdgechatError as error:
            self._list.show([NoteRow(one_line(error.message))])
        self._shown = words, in_trash
        if self._opens_first:
            self._open_first()

    async def _read_list(self, *, from_top: bool) -> None:
        headlines = page = await self._store.headlines(_FIRST_PAGE, 0)
        if not self._list.row:
            self._list.show(rows_of(headlines, date.today()))
        limit = _FIRST_PAGE
        while len(page) == limit and len(headlines) < _MOST:
            limit = _PAGE
            page = await self._store.headlines(limit, len(headlines))
            headlines = headlines + page
        rows = rows_of(headlines, date.today()) or [NoteRow("No conversations yet")]
        self._list.show(rows, from_top=from_top)

    async def _check_for_changes(self) -> None:
        if not (self.display and self.size and self.screen.is_current) or self._version is None:
            return
        try:
            if await self._store.version() != self._version:
                self.reload()
        except EdgechatError:
            return  # reported when the user next requests something

    # The user's requests.

    @on(LineField.Changed, "SearchField")
    def _typed(self) -> None:
        self._opens_first = False
        self.reload(_SEARCH_DELAY if self._field.value.strip() else 0.0)

    @on(LineField.Submitted, "SearchField")
    def _submitted(self) -> None:
        # Enter may arrive before the hits for the last letters, and must not open an outdated row.
        self._opens_first = True
        if (self._field.value.strip(), self._in_trash) == self._shown and self._version is not None:
            self._open_first()
        else:
            self.reload()

    def _open_first(self) -> None:
        self._opens_first = False
        if self._list.row is not None:
            self._list.action_request("choose")

    @on(LineField.Submitted, "TitleField")
    def _rename(self, event: LineField.Submitted) -> None:
        field, title = event.input, one_line(event.value)
        if isinstance(field, TitleField):
            self._list.focus()
            if title:
                self.post_message(ChatList.Requested("retitle", field.row, title))

    @on(ChatList.Requested)
    async def _requested(self, event: ChatList.Requested) -> None:
        """Handle requests for the list; let others bubble up to the screen."""
        match event.action:
            case "search":
                self.search(self._field.value)
            case "list":
                self._list.focus()
            case "trash":
                self.focus_trash()
            case "leave":
                self._leave()
            case "rename" if event.row is not None:
                await self._edit_title(event.row)
            case "choose":
                self.post_message(ChatList.Requested("open", event.row, self._shown[0]))
            case "restore":
                self._in_trash = False
                return
            case _:
                return
        event.stop()

    def _leave(self) -> None:
        if self._in_trash:
            self._show_trash(False)
        elif self._field.value:
            self._field.value = ""
            self._list.focus()
        else:
            self.post_message(ChatList.Requested("close"))

    async def _edit_title(self, row: SelectableRow) -> None:
        field = TitleField(row)
        top = self._list.region.y - self.region.y + self._list.line_of_cursor()
        field.styles.offset = (2, top)
        field.styles.width = max(8, self._list.scrollable_content_region.width - 3)
        await self.mount(field)
        field.focus()

    def on_resize(self, _: events.Resize) -> None:
        """Draw a border only next to another widget; stop editing a title, because its row has moved."""
        self.set_class(self.outer_size.width >= self.screen.size.width, "-whole")
        for field in self.query(TitleField):
            field.action_give_up()
