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
from edgechat.tui.overlays.consent import ConsentScreen
from edgechat.tui.overlays.switches import ToolsScreen
from edgechat.tui.transcript.turns import CallPiece
from tests.chat.offering import call
from tests.fakes import MODEL, FakeEngine, thought

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


async def use_tools(pilot, names):
    await pilot.see("it is.")
    await pilot.ask(f"/tools {names}", see="tools on")


async def consent_asked(pilot):
    await pilot.until(lambda: isinstance(pilot.app.screen, ConsentScreen))
    await pilot.see("Always in this chat")


def answered(pilot, text):
    return lambda: text in pilot.text and not pilot.chat.answering


@asynccontextmanager
async def asking(scene, notes, *scripts, question="What is it?"):
    """The app with a folder's tools, as it asks for consent to the first call of a reply."""
    async with scene(*scripts, size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await pilot.ask(question)
        await consent_asked(pilot)
        yield pilot


def pieces(pilot):
    return [piece for piece in pilot.transcript.pieces if isinstance(piece, CallPiece)]


async def test_a_call_is_shown_whole_allowed_made_and_folded(scene, notes):
    async with asking(scene, notes, [thought("Hm."), "Let me look.", READ], ["It is ", "striped."]) as pilot:
        pilot.shows("files: read_file", '"path": "notes.txt"', "changes nothing")
        await pilot.press("o", until=answered(pilot, "It is striped."))
        pilot.shows("Let me look.", 'files: read_file(path="notes.txt") · 0.', hidden="zebra")
        pilot.transcript.focus()
        await pilot.press("enter", see="zebra", shown="▾ Thought")
        await pilot.press("enter", gone="zebra")
        (piece,) = pieces(pilot)
        await pilot.click(piece.sheet)
        await pilot.see("zebra")
        assert [piece.turn for piece in pieces(pilot)] == [pilot.controller.shown.turns[-1].id]
    _, reply = await scene.stored()
    assert reply.content == "It is striped."
    assert "zebra" in reply.rounds[0].uses[0].result


async def test_the_transcript_of_a_stored_chat_has_its_calls(scene, notes):
    async with asking(scene, notes, [thought("Hm."), "Look.", READ], [thought("Oh."), "Striped."]) as pilot:
        await pilot.press("c", until=answered(pilot, "Striped."))
        live = [type(piece).__name__ for piece in pilot.transcript.pieces]
    async with scene(size=(100, 30), last=True) as pilot:
        await pilot.see("Striped.")
        assert [type(piece).__name__ for piece in pilot.transcript.pieces] == live
        pilot.shows("tools on")
        assert pilot.controller.shown.tools == (f"files:{notes}",)


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
async def test_an_answer_lasts_as_long_as_it_says(scene, notes, key, questions, outcomes):
    second = call("read_file", "c2", path="notes.txt")
    asked = 0
    async with scene([READ], [second], ["Done."], size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await pilot.ask("What is it?")
        while asked < questions:
            await consent_asked(pilot)
            asked, panel = asked + 1, pilot.app.screen
            await pilot.press(key, until=lambda panel=panel: pilot.app.screen is not panel)
        await pilot.until(answered(pilot, "Done."))
    reply = (await scene.stored())[-1]
    assert [part.uses[0].outcome for part in reply.rounds] == outcomes


async def test_escape_at_the_question_stops_the_reply(scene, notes):
    async with asking(scene, notes, ["Look.", READ], ["Then not."]) as pilot:
        await pilot.press("escape", until=answered(pilot, "You stopped the reply here."))
        pilot.shows("not carried out")
        await pilot.ask("/continue", until=answered(pilot, "Then not."))
        assert len(pieces(pilot)) == 1
    assert len(pilot.engine.requests) == 2


async def test_escape_stops_a_call_that_runs(scene, notes, monkeypatch):
    async def never(*_, **__):
        await asyncio.sleep(60)

    monkeypatch.setattr("edgechat.tools.registry.ToolSet.call", never)
    async with scene([call("calculate", expression="1+1")], size=(100, 30)) as pilot:
        await use_tools(pilot, "calculator")
        await pilot.ask("How much?", see="Calling calculator: calculate, 1 s", shown="· running")
        await pilot.press("escape", until=answered(pilot, "You stopped the reply here."))


async def test_a_question_that_nobody_waits_for_any_more_goes_away(scene, notes):
    async with asking(scene, notes, [READ]) as pilot:
        await pilot.press("f1")  # the help is in front of it
        await pilot.see("Keys and commands")
        await pilot.controller.shown.stop()
        await pilot.press("escape", until=lambda: pilot.in_chat)


async def test_keys_that_were_meant_for_something_else_do_not_answer(scene, notes, monkeypatch):
    monkeypatch.setattr(ConsentScreen, "QUIET_SECONDS", 600.0)
    async with asking(scene, notes, [READ], ["Done."]) as pilot:
        for key in ("o", "a", "enter", "escape"):
            await pilot.press(key)
        assert isinstance(pilot.app.screen, ConsentScreen)
        monkeypatch.setattr(ConsentScreen, "QUIET_SECONDS", 0.0)  # as after a moment
        await pilot.press("n", until=answered(pilot, "Done."))


async def test_a_chat_in_the_background_says_which_it_is(scene, notes):
    async with scene([0.3, READ], ["Done."], size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{notes}")
        await pilot.ask("What is in my notes?")
        await pilot.press("ctrl+n")
        await consent_asked(pilot)
        pilot.shows("In “What is in my notes?”")
        await pilot.press("o", until=lambda: "has ended" in str(pilot.told))


async def test_a_tool_that_fails_is_marked_and_told_to_the_model(scene, notes):
    async with asking(
        scene, notes, [call("read_file", path="none.txt"), ToolCall("c2", "burn", "{}")], ["Oh."]
    ) as pilot:
        await pilot.press("o", until=answered(pilot, "Oh."))
        assert pilot.text.count("· failed") == 2


async def test_an_answer_without_a_word_is_noted(scene):
    async with scene([call("calculate", expression="1+1")], [], size=(100, 30)) as pilot:
        await use_tools(pilot, "calculator")
        await pilot.ask("How much?", until=answered(pilot, "The model wrote nothing after its tool calls."))


async def test_a_server_that_is_missing_is_told(scene, tmp_path):
    async with scene(["Well."], size=(100, 30)) as pilot:
        await use_tools(pilot, f"files:{tmp_path / 'gone'}")
        await pilot.say("What is it?")
        assert "gone" in str(pilot.told)
        pilot.shows("Well.")


async def test_a_model_without_tools_is_told_before_the_question(scene):
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(MODEL, has_tools=False)
    async with scene(engine, size=(100, 30)) as pilot:
        await use_tools(pilot, "calculator")
        pilot.prompt.insert("How much?")
        await pilot.see("scripted's template does not support tools")


# The panel alone.


def question(**fields):
    tool = ToolSpec(server="shop", name="buy", title="Buy", description="Buys things.", destructive=True)
    values = {"tool": tool, "arguments": shown_arguments('{"what": "a\\u001b[31m lamp"}')} | fields
    return Question(**values)


async def test_the_whole_of_a_long_call_can_be_read_and_escapes_are_inert(scene):
    lines = ", ".join(f'"line {n}"' for n in range(100))
    asked = question(arguments=shown_arguments(f"[{lines}]"), changed="-Sells things.\n+Buys things.")
    async with scene(size=(60, 24)) as pilot:
        for width in (60, 100, 160):
            await pilot.resize(width, 24)
            pilot.app.push_screen(ConsentScreen(asked, "Another"))
            await pilot.see("Never", shown=("+Buys things.", "may delete or overwrite"))
            seen = pilot.text
            for _ in range(12):
                await pilot.press("pagedown")
                seen += pilot.text
            assert all(f'"line {n}"' in seen for n in range(100))
            await pilot.press("n", until=lambda: pilot.in_chat)
        pilot.app.push_screen(ConsentScreen(question()))
        await pilot.see("Never", shown="a\\u001b[31m lamp")


# The choice of tools.


@asynccontextmanager
async def choosing(scene):
    async with scene.loaded(["Hi."], size=(100, 30)) as pilot:
        await pilot.press("f9")
        await pilot.until(lambda: isinstance(pilot.app.screen, ToolsScreen) and "calculator" in pilot.text)
        yield pilot


async def test_tools_are_switched_on_and_shown(scene):
    async with choosing(scene) as pilot:
        await pilot.press("space", see=("◉ calculator", "calculate "))
        await pilot.press("escape", until=lambda: pilot.in_chat)
        assert pilot.controller.shown.tools == ("calculator",)
        await pilot.say("Hello?")
        store = await Store.open(scene.path)
        (chat,) = await store.chats()
        await store.close()
        assert chat.settings.tools == ("calculator",)
        await pilot.press("f9", see="◉ calculator")
        await pilot.press("enter", "escape", until=lambda: pilot.in_chat)
        assert pilot.controller.shown.tools == ()


async def test_documents_are_named_to_be_searched(scene, notes):
    with closing(registry.create("animals")) as animals:
        animals.add_root(str(notes))
    async with choosing(scene) as pilot:
        while "○ documents" not in line_at_cursor(pilot):
            await pilot.press("down")
        await pilot.press("space", see="Let it search these documents")
        await pilot.press(*"animal", "enter", see="There is no document collection named 'animal'")
        await pilot.press("s", "enter", see="search_documents", shown="◉ documents")


async def test_a_folder_is_named_for_files(scene, notes):
    async with choosing(scene) as pilot:
        while "○ files" not in line_at_cursor(pilot):
            await pilot.press("down")
        await pilot.press("space", see="Let it read this folder")
        await pilot.press("escape", gone="Let it read this folder")
        await pilot.press("space")
        for key in ("backspace", *str(notes), "enter"):
            await pilot.press({"/": "slash", "_": "underscore", "-": "minus", ".": "full_stop"}.get(key, key))
        await pilot.see("read_file")
        assert pilot.controller.shown.tools == (f"files:{notes}",)
        await pilot.press("space", until=lambda: pilot.controller.shown.tools == ())


def line_at_cursor(pilot):
    from edgechat.tui.widgets.lists import KeyedList

    options = pilot.app.screen.query_one(KeyedList)
    option = options.highlighted_option
    return str(option.prompt) if option is not None else ""


async def test_what_is_wrong_with_a_server_is_told(scene, home):
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "mcp.json").write_text('{"mcpServers": {"lamps": {"command": "no-such-command"}}}')
    async with scene.loaded(size=(100, 30)) as pilot:
        await pilot.ask("/tools", see="lamps")
        await pilot.press("end", "space", see=("no-such-command", "◉ lamps"))
        await pilot.gone("Starting", shown="edgechat mcp")
