"""Tools in the app: chosen for a chat, asked about, called, shown, stopped."""

import asyncio
from contextlib import asynccontextmanager, closing

import msgspec
import pytest

from edgechat.chat.storage.store import Store
from edgechat.documents import registry
from edgechat.engine.types import ToolCall
from edgechat.tools.consent import Question
from edgechat.tools.tool import ToolSpec, shown_arguments
from edgechat.tui.tools.consent import ConsentScreen
from edgechat.tui.tools.picker import ToolsScreen
from edgechat.tui.transcript.calls import CallPiece
from tests.chat.offering import call
from tests.fakes import MODEL, FakeEngine, thought
from tests.tui.driving import app_with, ask, say, stored_turns, text_of, transcript, until

pytestmark = pytest.mark.slow

READ = call("read_file", "c1", path="notes.txt")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(ConsentScreen, "QUIET_SECONDS", 0.0)


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "notes.txt").write_text("The zebra.\nIt is striped.\n")
    return folder


def messages(pilot):
    return [str(notification.message) for notification in pilot.app._notifications]


async def use_tools(pilot, names):
    await until(pilot, lambda: "it is." in text_of(pilot))
    await ask(pilot, f"/tools {names}")
    await until(pilot, lambda: "tools on" in text_of(pilot))


async def consent_asked(pilot):
    await until(pilot, lambda: isinstance(pilot.app.screen, ConsentScreen))
    await until(pilot, lambda: "Always in this chat" in text_of(pilot))


async def answered(pilot, text):
    await until(pilot, lambda: text in text_of(pilot) and not pilot.app.chat.answering)


def pieces(pilot):
    return [piece for piece in transcript(pilot).pieces if isinstance(piece, CallPiece)]


async def test_a_call_is_shown_whole_allowed_made_and_folded(tmp_path, notes):
    engine = FakeEngine([thought("Hm."), "Let me look.", READ], ["It is ", "striped."])
    app = app_with(engine, tmp_path / "chats.db")
    async with app.run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is it?")
        await consent_asked(pilot)
        shown = text_of(pilot)
        assert "files: read_file" in shown
        assert '"path": "notes.txt"' in shown
        assert "changes nothing" in shown
        await pilot.press("o")
        await answered(pilot, "It is striped.")
        shown = text_of(pilot)
        assert "Let me look." in shown
        assert 'files: read_file(path="notes.txt") · 0.' in shown
        assert "zebra" not in shown
        transcript(pilot).focus()
        await pilot.press("enter")
        await until(pilot, lambda: "zebra" in text_of(pilot))
        assert "▾ Thought" in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "zebra" not in text_of(pilot))
        (piece,) = pieces(pilot)
        await pilot.click(piece.sheet)
        await until(pilot, lambda: "zebra" in text_of(pilot))
        assert [piece.turn for piece in pieces(pilot)] == [app.chat.controller.shown.turns[-1].id]
    _, reply = await stored_turns(tmp_path / "chats.db")
    assert reply.content == "It is striped."
    assert "zebra" in reply.rounds[0].uses[0].result


async def test_the_transcript_of_a_stored_chat_has_its_calls(tmp_path, notes):
    engine = FakeEngine([thought("Hm."), "Look.", READ], [thought("Oh."), "Striped."])
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is it?")
        await consent_asked(pilot)
        await pilot.press("c")
        await answered(pilot, "Striped.")
        live = [type(piece).__name__ for piece in transcript(pilot).pieces]
    async with app_with(FakeEngine(), tmp_path / "chats.db", last=True).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Striped." in text_of(pilot))
        assert [type(piece).__name__ for piece in transcript(pilot).pieces] == live
        assert "tools on" in text_of(pilot)
        assert app_of(pilot).controller.shown.tools == (f"files:{notes}",)


def app_of(pilot):
    return pilot.app.chat


@pytest.mark.parametrize(
    ("key", "questions", "outcomes"),
    [
        ("o", 2, ["answered", "answered"]),
        ("c", 1, ["answered", "answered"]),
        ("a", 1, ["answered", "answered"]),
        ("n", 2, ["refused", "refused"]),
        ("v", 1, ["refused", "refused"]),
        ("enter", 2, ["answered", "answered"]),
    ],
)
async def test_an_answer_lasts_as_long_as_it_says(tmp_path, notes, key, questions, outcomes):
    second = call("read_file", "c2", path="notes.txt")
    engine = FakeEngine([READ], [second], ["Done."])
    asked = 0
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is it?")
        while asked < questions:
            await consent_asked(pilot)
            asked, panel = asked + 1, pilot.app.screen
            await pilot.press(key)
            await until(pilot, lambda panel=panel: pilot.app.screen is not panel)
        await answered(pilot, "Done.")
    reply = (await stored_turns(tmp_path / "chats.db"))[-1]
    assert [part.uses[0].outcome for part in reply.rounds] == outcomes


async def test_escape_at_the_question_stops_the_reply(tmp_path, notes):
    engine = FakeEngine(["Look.", READ], ["Then not."])
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is it?")
        await consent_asked(pilot)
        await pilot.press("escape")
        await answered(pilot, "You stopped the reply here.")
        assert "not carried out" in text_of(pilot)
        await ask(pilot, "/continue")
        await answered(pilot, "Then not.")
        assert len(pieces(pilot)) == 1
    assert len(engine.requests) == 2


async def test_escape_stops_a_call_that_runs(tmp_path, notes, monkeypatch):
    async def never(*_, **__):
        await asyncio.sleep(60)

    monkeypatch.setattr("edgechat.tools.registry.ToolSet.call", never)
    engine = FakeEngine([call("calculate", expression="1+1")])
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, "calculator")
        await ask(pilot, "How much?")
        await until(pilot, lambda: "Calling calculator: calculate, 1 s" in text_of(pilot))
        assert "· running" in text_of(pilot)
        await pilot.press("escape")
        await answered(pilot, "You stopped the reply here.")


async def test_a_question_that_nobody_waits_for_any_more_goes_away(tmp_path, notes):
    engine = FakeEngine([READ])
    app = app_with(engine, tmp_path / "chats.db")
    async with app.run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is it?")
        await consent_asked(pilot)
        await pilot.press("f1")  # the help is in front of it
        await until(pilot, lambda: "Keys and commands" in text_of(pilot))
        await app.chat.controller.shown.stop()
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is app.chat)


async def test_keys_that_were_meant_for_something_else_do_not_answer(tmp_path, notes, monkeypatch):
    monkeypatch.setattr(ConsentScreen, "QUIET_SECONDS", 600.0)
    async with app_with(FakeEngine([READ], ["Done."]), tmp_path / "chats.db").run_test(
        size=(100, 30)
    ) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is it?")
        await consent_asked(pilot)
        for key in ("o", "a", "enter", "escape"):
            await pilot.press(key)
        assert isinstance(pilot.app.screen, ConsentScreen)
        monkeypatch.setattr(ConsentScreen, "QUIET_SECONDS", 0.0)  # as after a moment
        await pilot.press("n")
        await answered(pilot, "Done.")


async def test_a_chat_in_the_background_says_which_it_is(tmp_path, notes):
    engine = FakeEngine([0.3, READ], ["Done."])
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is in my notes?")
        await pilot.press("ctrl+n")
        await consent_asked(pilot)
        assert "In “What is in my notes?”" in text_of(pilot)
        await pilot.press("o")
        await until(pilot, lambda: any("has ended" in message for message in messages(pilot)))


async def test_a_tool_that_fails_is_marked_and_told_to_the_model(tmp_path, notes):
    engine = FakeEngine([call("read_file", path="none.txt"), ToolCall("c2", "burn", "{}")], ["Oh."])
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await ask(pilot, "What is it?")
        await consent_asked(pilot)
        await pilot.press("o")
        await answered(pilot, "Oh.")
        assert text_of(pilot).count("· failed") == 2


async def test_an_answer_without_a_word_is_noted(tmp_path):
    engine = FakeEngine([call("calculate", expression="1+1")], [])
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, "calculator")
        await ask(pilot, "How much?")
        await answered(pilot, "The model said nothing after its calls.")


async def test_a_server_that_is_missing_is_told(tmp_path):
    async with app_with(FakeEngine(["Well."]), tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{tmp_path / 'gone'}")
        await say(pilot, "What is it?")
        assert any("gone" in message for message in messages(pilot))
        assert "Well." in text_of(pilot)


async def test_a_model_without_tools_is_told_before_the_question(tmp_path):
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(MODEL, has_tools=False)
    async with app_with(engine, tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await use_tools(pilot, "calculator")
        pilot.app.screen.prompt.insert("How much?")
        await until(pilot, lambda: "the template of scripted has no tools" in text_of(pilot))


# The panel alone.


def question(**fields):
    tool = ToolSpec(server="shop", name="buy", title="Buy", description="Buys things.", destructive=True)
    values = {"tool": tool, "arguments": shown_arguments('{"what": "a\\u001b[31m lamp"}')} | fields
    return Question(**values)


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_the_whole_of_a_long_call_can_be_read(tmp_path, width):
    lines = ", ".join(f'"line {n}"' for n in range(100))
    asked = question(arguments=shown_arguments(f"[{lines}]"), changed="-Sells things.\n+Buys things.")
    async with app_with(FakeEngine(), tmp_path / "chats.db").run_test(size=(width, 24)) as pilot:
        pilot.app.push_screen(ConsentScreen(asked, "Another"))
        await until(pilot, lambda: "Never" in text_of(pilot))
        seen = text_of(pilot)
        assert "+Buys things." in seen
        assert "may delete or overwrite" in seen
        for _ in range(12):
            await pilot.press("pagedown")
            seen += text_of(pilot)
        assert all(f'"line {n}"' in seen for n in range(100))


async def test_escape_sequences_are_shown_inert(tmp_path):
    async with app_with(FakeEngine(), tmp_path / "chats.db").run_test(size=(100, 24)) as pilot:
        pilot.app.push_screen(ConsentScreen(question()))
        await until(pilot, lambda: "Never" in text_of(pilot))
        assert "a\\u001b[31m lamp" in text_of(pilot)


# The choice of tools.


@asynccontextmanager
async def choosing(tmp_path):
    async with app_with(FakeEngine(["Hi."]), tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press("f9")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, ToolsScreen) and "calculator" in text_of(pilot)
        )
        yield pilot


async def test_tools_are_switched_on_and_shown(tmp_path):
    async with choosing(tmp_path) as pilot:
        await pilot.press("space")
        await until(pilot, lambda: "◉ calculator" in text_of(pilot) and "calculate " in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is app_of(pilot))
        assert app_of(pilot).controller.shown.tools == ("calculator",)
        await say(pilot, "Hello?")
        store = await Store.open(tmp_path / "chats.db")
        (chat,) = await store.chats()
        await store.close()
        assert chat.settings.tools == ("calculator",)
        await pilot.press("f9")
        await until(pilot, lambda: "◉ calculator" in text_of(pilot))
        await pilot.press("enter", "escape")
        await until(pilot, lambda: pilot.app.screen is app_of(pilot))
        assert app_of(pilot).controller.shown.tools == ()


async def test_documents_are_named_to_be_searched(tmp_path, notes):
    with closing(registry.create("animals")) as animals:
        animals.add_root(str(notes))
    async with choosing(tmp_path) as pilot:
        while "○ documents" not in line_at_cursor(pilot):
            await pilot.press("down")
        await pilot.press("space")
        await until(pilot, lambda: "Let it search these documents" in text_of(pilot))
        await pilot.press(*"animal", "enter")
        await until(pilot, lambda: "There are no documents 'animal'" in text_of(pilot))
        await pilot.press("s", "enter")
        await until(pilot, lambda: "search_documents" in text_of(pilot))
        assert "◉ documents" in text_of(pilot)


async def test_a_folder_is_named_for_files(tmp_path, notes):
    async with choosing(tmp_path) as pilot:
        while "○ files" not in line_at_cursor(pilot):
            await pilot.press("down")
        await pilot.press("space")
        await until(pilot, lambda: "Let it read this folder" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "Let it read this folder" not in text_of(pilot))
        await pilot.press("space")
        for key in ("backspace", *str(notes), "enter"):
            await pilot.press({"/": "slash", "_": "underscore", "-": "minus", ".": "full_stop"}.get(key, key))
        await until(pilot, lambda: "read_file" in text_of(pilot))
        assert app_of(pilot).controller.shown.tools == (f"files:{notes}",)
        await pilot.press("space")
        await until(pilot, lambda: app_of(pilot).controller.shown.tools == ())


def line_at_cursor(pilot):
    from edgechat.tui.models.keyed_list import KeyedList

    options = pilot.app.screen.query_one(KeyedList)
    option = options.highlighted_option
    return str(option.prompt) if option is not None else ""


async def test_what_is_wrong_with_a_server_is_told(tmp_path, home):
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "mcp.json").write_text('{"mcpServers": {"lamps": {"command": "no-such-command"}}}')
    async with app_with(FakeEngine(), tmp_path / "chats.db").run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await ask(pilot, "/tools")
        await until(pilot, lambda: "lamps" in text_of(pilot))
        await pilot.press("end", "space")
        await until(pilot, lambda: "no-such-command" in text_of(pilot) and "◉ lamps" in text_of(pilot))
        await until(pilot, lambda: "Starting" not in text_of(pilot))
        assert "edgechat mcp" in text_of(pilot)
