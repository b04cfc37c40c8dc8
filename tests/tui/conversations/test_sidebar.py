"""The list of conversations and its search, over a real store."""

import time
from contextlib import asynccontextmanager

import pytest
from textual.app import App
from textual.containers import Horizontal
from textual.widgets import Static

from edgechat.chat.records import Chat, Turn
from edgechat.chat.storage.store import Store
from edgechat.tui import theme
from edgechat.tui.conversations import sidebar as sidebar_module
from edgechat.tui.conversations.sidebar import SearchField, Sidebar, TitleField
from tests.tui.driving import driven

DAY = 86400.0


class Stage(App[None]):
    """A sidebar beside nothing; it keeps what it is told."""

    def __init__(self, store, *, wide=False):
        super().__init__(ansi_color=True)
        theme.apply(self, "terminal")
        self.sidebar = Sidebar(store)
        self.wide = wide
        self.told = []

    def compose(self):
        with Horizontal():
            yield self.sidebar
            if not self.wide:
                yield Static("chat")

    def on_mount(self):
        if self.wide:
            self.sidebar.styles.width = "1fr"

    def hear(self, message):
        """Remember the action, the conversation, the turn and the text of a request."""
        key = message.row.key if message.row is not None else ("", "")
        self.told.append((message.action, *key, message.text))

    on_chat_list_requested = hear


@pytest.fixture
async def store(tmp_path):
    opened = await Store.open(tmp_path / "chats.db")
    yield opened
    await opened.close()


async def put(store, name, title, *, ago=0.0, said="Hi", **fields):
    when = time.time() - ago
    chat = Chat(id=name, title=title, model="m", date="d", created_at=when, updated_at=when, **fields)
    await store.add(chat, [Turn(id=f"t{name}", chat_id=name, role="user", content=said, created_at=when)])


async def some(store):
    await put(store, "aaaaaaaa", "Of today", said="A brown pelican flies")
    await put(store, "bbbbbbbb", "Earlier", ago=DAY * 4, said="A heron stands")
    await put(store, "cccccccc", "Long ago", ago=DAY * 90, said="Another pelican")
    await put(store, "dddddddd", "Kept", ago=DAY * 40, pinned=True)


def listed(pilot):
    """Return the lines under the search field, without the chat beside it."""
    lines = [line.split("▕")[0].rstrip("▁▂▃▄▅▆▇█ ") for line in pilot.text.splitlines()[3:]]
    return [line for line in lines if line.strip()]


async def ready(pilot):
    await pilot.until(lambda: len(listed(pilot)) > 0)
    pilot.app.sidebar.focus_list()
    await pilot.pause()


@asynccontextmanager
async def sidebar(store, size=(80, 24), *, wide=False, known=True):
    """The list, with four conversations unless there are `known` to be others."""
    if known:
        await some(store)
    async with driven(Stage(store, wide=wide), size) as pilot:
        await ready(pilot)
        yield pilot, pilot.app


async def hears(pilot, *messages):
    """Wait until the app was told so much."""
    await pilot.until(lambda: len(pilot.app.told) >= len(messages))
    assert pilot.app.told == list(messages)


@pytest.mark.parametrize("ago", [9e15, -9e15, -4e9])
async def test_a_time_that_no_calendar_has_is_shown_as_some_time(store, ago):
    await put(store, "aaaaaaaa", "Of no day", ago=ago, said="A brown pelican flies")
    async with sidebar(store, known=False) as (pilot, _):
        assert [line.strip() for line in listed(pilot)][-1] == "Of no day"
        await pilot.press("slash", *"pelican", see="1 found")
        await pilot.see("A brown pelican flies")


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_pinned_ones_come_first_and_then_the_days(store, width):
    async with sidebar(store, (width, 24), wide=width == 60) as (pilot, app):
        app.sidebar.show_current("aaaaaaaa", frozenset({"bbbbbbbb"}))
        await pilot.see("●")
        *lines, earlier, older, long_ago = [line.strip() for line in listed(pilot)]
        assert lines == ["Pinned", "Kept", "Today", "▌ Of today", "Last 7 days"]
        assert (earlier[:7], earlier[-1], older, long_ago) == ("Earlier", "●", "Older", "Long ago")


@pytest.mark.slow
async def test_there_are_no_conversations_yet(store):
    async with sidebar(store, known=False) as (pilot, app):
        assert listed(pilot) == ["  No conversations yet"]
        for key in ("enter", "p", "d", "x", "r", "down", "pagedown", "end"):
            await pilot.press(key)
        await pilot.press("t", see="The trash is empty.")
        await pilot.press("enter", "delete")
        assert app.told == []


@pytest.mark.slow
async def test_the_keys_tell_what_is_wanted(store):
    async with sidebar(store) as (pilot, app):
        await pilot.press("home", "p", "down", "p", "d", "delete", "x", "enter", "escape")
        await pilot.until(lambda: len(app.told) == 7)
        *told, closed = app.told
        kept, today = "dddddddd", "aaaaaaaa"
        assert told[:2] == [("pin", kept, "", ""), ("pin", today, "", "")]
        assert told[2:4] == [("delete", today, "", ""), ("delete", today, "", "")]
        assert told[4:] == [("export", today, "", ""), ("open", today, "", "")]
        assert closed[0] == "close"


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 100])
async def test_the_trash_is_shown_in_place_of_the_list(store, width):
    await some(store)
    for name, days in (("bbbbbbbb", 29.5), ("cccccccc", 10.5), ("dddddddd", 0.0)):
        await store.trash(name)
        store._db.execute(
            "UPDATE conversations SET trashed_at = trashed_at - ? WHERE id = ?", (days * DAY, name)
        )
    async with sidebar(store, (width, 24), wide=width == 60, known=False) as (pilot, app):
        await pilot.press("t", see="Trash")
        lines = [" ".join(line.split()) for line in listed(pilot)]
        assert lines == ["Trash · deleted in", "Kept 30 days", "Long ago 20 days", "Earlier 1 day"]
        await pilot.press("down", "r", "p", "x", "t", "delete", "enter")
        await hears(pilot, ("purge", "cccccccc", "", ""), ("restore", "cccccccc", "", ""))
        app.sidebar.focus_trash()
        await pilot.see("Trash")
        await pilot.click(offset=(4, 5))
        await pilot.pause()
        await pilot.press("escape", see="Of today")
        assert len(app.told) == 2
        app.sidebar.focus_trash()
        await pilot.see("Trash")
        await pilot.press("slash", *"brown", see="1 found")


@pytest.mark.slow
async def test_the_cursor_begins_at_the_open_conversation_and_stays_with_its_row(store):
    await some(store)
    async with driven(Stage(store)) as pilot:
        app = pilot.app
        app.sidebar.show_current("bbbbbbbb")
        await ready(pilot)
        await put(store, "eeeeeeee", "New")
        app.sidebar.show_current("bbbbbbbb")
        await pilot.see("New")
        await pilot.press("enter")
        await store.trash("bbbbbbbb")
        app.sidebar.show_current("eeeeeeee")
        await pilot.gone("Earlier")
        await pilot.press("enter")
        await hears(pilot, ("open", "bbbbbbbb", "", ""), ("open", "cccccccc", "", ""))


@pytest.mark.slow
async def test_a_title_is_changed_in_its_place(store):
    async with sidebar(store) as (pilot, app):
        await pilot.press("home", "down", "r", until=lambda: isinstance(app.focused, TitleField))
        y = next(y for y, line in enumerate(pilot.text.splitlines()) if "Of today" in line)
        assert app.focused.region.y == y
        await pilot.press("N", "e", "w", "enter")
        await hears(pilot, ("retitle", "aaaaaaaa", "", "New"))
        await pilot.press("r", "x", "escape", "r", *["backspace"] * 20, "enter")
        await pilot.until(lambda: not app.query(TitleField))
        assert len(app.told) == 1
        await pilot.press("enter", until=lambda: len(app.told) == 2)


@pytest.mark.slow
async def test_typing_searches_and_enter_opens_the_place(store):
    async with sidebar(store) as (pilot, app):
        await pilot.press("b", "slash", "b", "r", "o", "w", see="1 found")
        assert isinstance(app.focused, SearchField)
        found = [line.strip() for line in listed(pilot)][1:]
        assert found == [f"Of today              {time.strftime('%H:%M')}", "A brown pelican flies"]
        await pilot.press("enter")
        await hears(pilot, ("open", "aaaaaaaa", "taaaaaaaa", "brow"))
        await pilot.press("escape", see="Pinned")
        assert len(app.told) == 1
        await pilot.press("slash", *"pelican", "down", "down", "enter")
        await pilot.until(lambda: len(app.told) == 2 and "2 found" in pilot.text)
        await pilot.press("escape", "escape", until=lambda: len(app.told) == 3)
        assert app.told[-1][0] == "close"


@pytest.mark.slow
async def test_enter_opens_what_was_typed_and_not_what_was_listed(store):
    async with sidebar(store) as (pilot, app):
        await pilot.press("slash", *"heron", "enter")
        await hears(pilot, ("open", "bbbbbbbb", "tbbbbbbbb", "heron"))
        await pilot.press(*" flies", "enter", "backspace", see="Nothing found")
        await pilot.pause(0.3)
        assert len(app.told) == 1  # as it was changed before it was known


async def test_enter_in_a_search_waits_for_the_first_read(store):
    await some(store)
    async with driven(Stage(store)) as pilot:
        app = pilot.app
        app.sidebar.search("heron")
        await pilot.press("enter")
        await hears(pilot, ("open", "bbbbbbbb", "tbbbbbbbb", "heron"))


@pytest.mark.slow
async def test_the_app_may_search(store):
    async with sidebar(store) as (pilot, app):
        app.sidebar.search("heron\x1b \n st")
        await pilot.see("1 found")
        await pilot.press("a", until=lambda: app.query_one(SearchField).value == "heron sta")
        app.sidebar.search("nothing like it")
        await pilot.see("Nothing found")
        await pilot.press("enter")
        await pilot.pause()
        assert app.told == []
        app.sidebar.search("kept")  # which is a title, and so leads to no turn
        await pilot.see("1 found")
        await pilot.press("enter")
        await hears(pilot, ("open", "dddddddd", "", "kept"))


@pytest.mark.slow
async def test_a_click_opens_a_row_and_no_heading(store):
    async with sidebar(store) as (pilot, app):
        lines = pilot.text.splitlines()
        for word in ("Today", "Of today"):
            y = next(y for y, line in enumerate(lines) if line.strip("│ ").startswith(word))
            await pilot.click(offset=(4, y))
            await pilot.pause()
        assert app.told == [("open", "aaaaaaaa", "", "")]


@pytest.mark.slow
async def test_what_another_program_writes_is_noticed(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sidebar_module, "POLL_INTERVAL", 0.05)
    async with sidebar(store, known=False) as (pilot, _):
        other = await Store.open(tmp_path / "chats.db")
        await put(other, "ffffffff", "From elsewhere")
        await pilot.see("From elsewhere")
        await other.close()


@pytest.mark.slow
async def test_a_thousand_conversations_are_two_widgets(store):
    store._db.execute("PRAGMA synchronous = OFF")
    for number in range(1250):
        await put(store, f"{number:08x}", f"Number {number}", ago=number * 600.0)
    async with sidebar(store, (100, 30), known=False) as (pilot, app):
        await pilot.press("end", see="Number 1249")
        assert len(app.sidebar.query("*")) <= 4
        # The heading of yesterday may stand where a page ends, and is skipped.
        await pilot.press("home", "pagedown", "pageup", "pageup", see="Number 0")


@pytest.mark.slow
async def test_titles_of_strangers_are_inert_and_fit(store):
    await put(
        store,
        "aaaaaaaa",
        "\x1b]0;x\x07[bold]日本語の長い題名がここに続きます " + "wide " * 40,
        said="\x9b31mx pelican",
    )
    async with sidebar(store, (60, 20), known=False) as (pilot, app):
        pilot.shows("]0;x[bold]日本語")
        app.sidebar.search("pelican")
        await pilot.see("1 found")
        strips = pilot.app.screen._compositor.render_strips()
        assert all(strip.cell_length == 60 for strip in strips)
        assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for strip in strips for one in strip.text)


async def test_a_store_that_cannot_be_read_is_told(store):
    async with sidebar(store, known=False) as (pilot, app):
        await store.close()
        app.sidebar.search("pelican")
        await pilot.see("closed.")


@pytest.mark.slow
async def test_the_cursor_is_seen_in_every_theme_while_the_keys_are_here(store):
    async with sidebar(store) as (pilot, app):

        def grounds():
            strips = [app.sidebar._list.render_line(y) for y in range(10)]
            styles = [segment.style for strip in strips for segment in strip if segment.style]
            return {(str(style.bgcolor), bool(style.reverse)) for style in styles}

        for name in theme.THEMES:
            theme.apply(app, name)
            for act, n_grounds in (
                (app.sidebar.focus_list, 2),
                (app.sidebar.search, 2),
                (lambda: app.set_focus(None), 1),
            ):
                act()
                await pilot.pause()
                assert len(grounds()) == n_grounds, name
