"""The list of conversations and its search, over a real store."""

import time

import pytest
from textual.app import App
from textual.containers import Horizontal
from textual.widgets import Static

from edgechat.chat.records import Chat, Turn
from edgechat.chat.storage.store import Store
from edgechat.tui import theme
from edgechat.tui.conversations import sidebar as sidebar_module
from edgechat.tui.conversations.sidebar import SearchField, Sidebar, TitleField
from tests.tui.driving import text_of, until

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
        self.told.append(message)

    on_sidebar_chosen = on_sidebar_renamed = on_sidebar_pinned = hear
    on_sidebar_deleted = on_sidebar_exported = on_sidebar_closed = hear
    on_sidebar_restored = on_sidebar_purged = hear


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
    lines = [line.split("▕")[0].rstrip("▁▂▃▄▅▆▇█ ") for line in text_of(pilot).splitlines()[3:]]
    return [line for line in lines if line.strip()]


async def ready(pilot):
    app = pilot.app
    assert isinstance(app, Stage)
    await until(pilot, lambda: len(listed(pilot)) > 0)
    app.sidebar.focus_list()
    await pilot.pause()
    return app


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_pinned_ones_come_first_and_then_the_days(store, width):
    await some(store)
    async with Stage(store, wide=width == 60).run_test(size=(width, 24)) as pilot:
        app = await ready(pilot)
        app.sidebar.show_current("aaaaaaaa", frozenset({"bbbbbbbb"}))
        await until(pilot, lambda: "●" in text_of(pilot))
        assert [line.strip() for line in listed(pilot)][:5] == [
            "Pinned",
            "Kept",
            "Today",
            "▌ Of today",
            "Last 7 days",
        ]
        (earlier,) = [line for line in listed(pilot) if "Earlier" in line]
        assert earlier.endswith("●")
        assert [line.strip() for line in listed(pilot)][-2:] == ["Older", "Long ago"]


async def test_there_are_no_conversations_yet(store):
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        assert listed(pilot) == ["  No conversations yet"]
        for key in ("enter", "p", "d", "x", "r", "down", "pagedown", "end"):
            await pilot.press(key)
        await pilot.press("t")
        await until(pilot, lambda: "The trash is empty." in text_of(pilot))
        await pilot.press("enter", "delete")
        assert app.told == []


async def test_the_keys_tell_what_is_wanted(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("home", "p", "down", "p", "d", "delete", "x", "enter", "escape")
        await until(pilot, lambda: len(app.told) == 7)
        assert app.told == [
            Sidebar.Pinned("dddddddd", False),
            Sidebar.Pinned("aaaaaaaa", True),
            Sidebar.Deleted("aaaaaaaa"),
            Sidebar.Deleted("aaaaaaaa"),
            Sidebar.Exported("aaaaaaaa"),
            Sidebar.Chosen("aaaaaaaa", None),
            app.told[-1],
        ]
        assert isinstance(app.told[-1], Sidebar.Closed)


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 100])
async def test_the_trash_is_shown_in_place_of_the_list(store, width):
    await some(store)
    for name, days in (("bbbbbbbb", 29.5), ("cccccccc", 10.5), ("dddddddd", 0.0)):
        await store.trash(name)
        assert store._db is not None
        store._db.execute(
            "UPDATE conversations SET trashed_at = trashed_at - ? WHERE id = ?", (days * DAY, name)
        )
    async with Stage(store, wide=width == 60).run_test(size=(width, 24)) as pilot:
        app = await ready(pilot)
        await pilot.press("t")
        await until(pilot, lambda: "Trash" in text_of(pilot))
        lines = [" ".join(line.split()) for line in listed(pilot)]
        assert lines == ["Trash · deleted in", "Kept 30 days", "Long ago 20 days", "Earlier 1 day"]
        await pilot.press("down", "r", "p", "x", "t", "delete", "enter")
        await until(pilot, lambda: len(app.told) == 2)
        assert app.told == [Sidebar.Purged("cccccccc"), Sidebar.Restored("cccccccc")]
        app.sidebar.focus_trash()
        await until(pilot, lambda: "Trash" in text_of(pilot))
        await pilot.click(offset=(4, 5))
        await pilot.pause()
        await pilot.press("escape")
        await until(pilot, lambda: "Of today" in text_of(pilot))
        assert len(app.told) == 2
        app.sidebar.focus_trash()
        await until(pilot, lambda: "Trash" in text_of(pilot))
        await pilot.press("slash", *"brown")
        await until(pilot, lambda: "1 found" in text_of(pilot))


async def test_the_cursor_begins_at_the_open_conversation_and_stays_with_its_row(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = pilot.app
        assert isinstance(app, Stage)
        app.sidebar.show_current("bbbbbbbb")
        await ready(pilot)
        await put(store, "eeeeeeee", "New")
        app.sidebar.show_current("bbbbbbbb")
        await until(pilot, lambda: "New" in text_of(pilot))
        await pilot.press("enter")
        await store.trash("bbbbbbbb")
        app.sidebar.show_current("eeeeeeee")
        await until(pilot, lambda: "Earlier" not in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.told) == 2)
        assert app.told == [Sidebar.Chosen("bbbbbbbb", None), Sidebar.Chosen("cccccccc", None)]


@pytest.mark.slow
async def test_a_title_is_changed_in_its_place(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("home", "down", "r")
        await until(pilot, lambda: isinstance(app.focused, TitleField))
        assert app.focused is not None
        assert app.focused.region.y == next(
            y for y, line in enumerate(text_of(pilot).splitlines()) if "Of today" in line
        )
        await pilot.press("N", "e", "w", "enter")
        await until(pilot, lambda: len(app.told) == 1)
        assert app.told == [Sidebar.Renamed("aaaaaaaa", "New")]
        await pilot.press("r", "x", "escape")
        await pilot.press("r", *["backspace"] * 20, "enter")
        await until(pilot, lambda: not app.query(TitleField))
        assert len(app.told) == 1
        await pilot.press("enter")
        await until(pilot, lambda: len(app.told) == 2)


@pytest.mark.slow
async def test_typing_searches_and_enter_opens_the_place(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("b", "slash", "b", "r", "o", "w")
        await until(pilot, lambda: "1 found" in text_of(pilot))
        assert isinstance(app.focused, SearchField)
        assert [line.strip() for line in listed(pilot)][1:] == [
            f"Of today              {time.strftime('%H:%M')}",
            "A brown pelican flies",
        ]
        await pilot.press("enter")
        await until(pilot, lambda: len(app.told) == 1)
        assert app.told == [Sidebar.Chosen("aaaaaaaa", "taaaaaaaa", "brow")]
        await pilot.press("escape")
        await until(pilot, lambda: "Pinned" in text_of(pilot))
        assert len(app.told) == 1
        await pilot.press("slash", *"pelican", "down", "down", "enter")
        await until(pilot, lambda: len(app.told) == 2 and "2 found" in text_of(pilot))
        await pilot.press("escape", "escape")
        await until(pilot, lambda: len(app.told) == 3)
        assert isinstance(app.told[-1], Sidebar.Closed)


async def test_enter_opens_what_was_typed_and_not_what_was_listed(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"heron", "enter")
        await until(pilot, lambda: len(app.told) == 1)
        assert app.told == [Sidebar.Chosen("bbbbbbbb", "tbbbbbbbb", "heron")]
        await pilot.press(*" flies", "enter", "backspace")
        await until(pilot, lambda: "Nothing found" in text_of(pilot))
        await pilot.pause(0.3)
        assert len(app.told) == 1  # as it was changed before it was known


async def test_enter_in_a_search_waits_for_the_first_read(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = pilot.app
        assert isinstance(app, Stage)
        app.sidebar.search("heron")
        await pilot.press("enter")
        await until(pilot, lambda: len(app.told) == 1)
        assert app.told == [Sidebar.Chosen("bbbbbbbb", "tbbbbbbbb", "heron")]


async def test_the_app_may_search(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        app.sidebar.search("heron\x1b \n st")
        await until(pilot, lambda: "1 found" in text_of(pilot))
        await pilot.press("a")
        await until(pilot, lambda: app.query_one(SearchField).value == "heron sta")
        app.sidebar.search("nothing like it")
        await until(pilot, lambda: "Nothing found" in text_of(pilot))
        await pilot.press("enter")
        await pilot.pause()
        assert app.told == []


async def test_a_title_that_is_found_is_opened_at_no_turn(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        app.sidebar.search("kept")
        await until(pilot, lambda: "1 found" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.told) == 1)
        assert app.told == [Sidebar.Chosen("dddddddd", None, "kept")]


async def test_a_click_opens_a_row_and_no_heading(store):
    await some(store)
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        lines = text_of(pilot).splitlines()
        for word in ("Today", "Of today"):
            y = next(y for y, line in enumerate(lines) if line.strip("│ ").startswith(word))
            await pilot.click(offset=(4, y))
            await pilot.pause()
        assert app.told == [Sidebar.Chosen("aaaaaaaa", None)]


async def test_what_another_program_writes_is_noticed(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sidebar_module, "POLL_INTERVAL", 0.05)
    async with Stage(store).run_test() as pilot:
        await ready(pilot)
        other = await Store.open(tmp_path / "chats.db")
        await put(other, "ffffffff", "From elsewhere")
        await until(pilot, lambda: "From elsewhere" in text_of(pilot))
        await other.close()


async def test_a_thousand_conversations_are_two_widgets(store):
    assert store._db is not None
    store._db.execute("PRAGMA synchronous = OFF")
    for number in range(1250):
        await put(store, f"{number:08x}", f"Number {number}", ago=number * 600.0)
    async with Stage(store).run_test(size=(100, 30)) as pilot:
        app = await ready(pilot)
        await pilot.press("end")
        await until(pilot, lambda: "Number 1249" in text_of(pilot))
        assert len(app.sidebar.query("*")) <= 4
        await pilot.press("home", "pagedown", "pageup")
        await until(pilot, lambda: "Number 0" in text_of(pilot))


async def test_titles_of_strangers_are_inert_and_fit(store):
    await put(
        store,
        "aaaaaaaa",
        "\x1b]0;x\x07[bold]日本語の長い題名がここに続きます " + "wide " * 40,
        said="\x9b31mx pelican",
    )
    async with Stage(store).run_test(size=(60, 20)) as pilot:
        app = await ready(pilot)
        assert "]0;x[bold]日本語" in text_of(pilot)
        app.sidebar.search("pelican")
        await until(pilot, lambda: "1 found" in text_of(pilot))
        strips = pilot.app.screen._compositor.render_strips()
        assert all(strip.cell_length == 60 for strip in strips)
        assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for strip in strips for one in strip.text)


async def test_a_store_that_cannot_be_read_is_told(store):
    async with Stage(store).run_test() as pilot:
        app = await ready(pilot)
        await store.close()
        app.sidebar.search("pelican")
        await until(pilot, lambda: "closed." in text_of(pilot))


@pytest.mark.parametrize("name", theme.THEMES)
async def test_the_cursor_is_seen_in_every_theme_while_the_keys_are_here(store, name):
    await some(store)
    app = Stage(store)
    async with app.run_test() as pilot:
        theme.apply(app, name)
        await ready(pilot)

        def grounds():
            strips = [app.sidebar._list.render_line(y) for y in range(10)]
            styles = [segment.style for strip in strips for segment in strip if segment.style]
            return {(str(style.bgcolor), bool(style.reverse)) for style in styles}

        assert len(grounds()) == 2
        app.sidebar.search()
        await pilot.pause()
        assert len(grounds()) == 2
        app.set_focus(None)
        await pilot.pause()
        assert len(grounds()) == 1
