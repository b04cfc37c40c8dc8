"""The chat without a terminal: the real controller, store and conversations, a view that only remembers."""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

from edgechat.base.errors import (
    ChatBusy,
    ChatNotFound,
    CommandError,
    DoesNotFit,
    EngineCrashed,
    PromptTooLong,
    SettingsError,
)
from edgechat.chat.records import Attachment
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.chat.storage.store import Store
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Settings
from edgechat.tui.chat.command_handlers import run_command
from edgechat.tui.chat.controller import ChatController
from edgechat.tui.chat.stored_conversations import delete, purge, restore, undo_delete
from edgechat.tui.chat.turn_actions import act, can
from tests.fakes import FakeEngine
from tests.tui.chat.views import FakeView


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


def plan(model, *, leaving=()):
    if model == "huge":
        raise DoesNotFit("huge does not fit.")
    return LoadPlan(model_path=model, model_name=model, context=4096, threads=1, reasons=(f"{model} it is.",))


@asynccontextmanager
async def started(
    path,
    engine,
    *,
    settings=Settings(),  # noqa: B008  (it is frozen)
    library=None,
    model=None,
    last=False,
    typed="",
):
    """A controller with a model loaded; closed afterwards. typed: what is typed before it has started."""

    def engine_for(plan, *, cache_policy, **_):
        engine.reopen(plan, lasting=cache_policy.disk_bytes != 0)
        return engine

    view = FakeView()
    view.pane.text = typed
    services = SessionServices(lambda: path, plan, engine_for, lambda: settings)
    controller = ChatController(view, ChatSession(services, model), library)
    await controller.start(last=last)
    yield controller, view
    await controller.close()
    await view.settled()


async def until(true):
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def say(controller, text):
    """Ask, wait for the reply, and return the id of the conversation."""
    controller.ask(text, [])
    await until(lambda: not controller.shown.is_answering)
    return controller.shown.id


def test_nothing_of_it_imports_textual():
    names = ("controller", "command_handlers", "stored_conversations", "turn_actions", "model_downloads")
    imports = "; ".join(f"import edgechat.tui.chat.{name}" for name in names)
    code = f"import sys; {imports}; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_question_is_answered_and_stored(path):
    async with started(path, FakeEngine(["Hello."])) as (controller, view):
        assert view.model == "guide"
        assert view.transcript.plan is not None
        assert view.transcript.plan.reasons == ("guide it is.",)
        chat = await say(controller, "Who?")
        assert view.transcript.text == "Who?\nHello."
        assert len(view.finished) == 1
        assert "Writing" in view.activities
        assert view.activities[-1] == ""
        store = await controller.session.store()
        assert [turn.content for turn in (await store.load(chat))[1]] == ["Who?", "Hello."]


async def test_a_conversation_is_left_and_opened_while_it_is_answered(path):
    engine = FakeEngine(["First."], ["One ", 1.0, "two."])
    async with started(path, engine) as (controller, view):
        first = await say(controller, "Who?")
        controller.begin_new()
        assert view.transcript.text == ""
        controller.ask("Count.", [])
        await until(lambda: "One" in view.transcript.text)
        second, counting = controller.shown.id, view.transcript
        await controller.open(first)
        assert view.transcript.text == "Who?\nFirst."
        assert controller.answering == {second}
        assert controller.title_of(second) == "Count."
        await controller.open(second)
        assert view.transcript is counting
        await controller.open(first)
        await until(lambda: not controller.answering)
        await view.settled()
        assert counting.text == "Count.\nOne two."
        assert view.messages[-1] == "The reply in “Count.” has ended."
        await controller.open(second)
        assert view.transcript is not counting
        assert view.transcript.text == counting.text


async def test_a_conversation_that_is_left_is_persisted(path):
    engine = FakeEngine()
    async with started(path, engine) as (controller, view):
        first = await say(controller, "Who?")
        controller.begin_new()
        await view.settled()
        assert engine.left == [first]


async def test_unsent_prompts_stay_with_their_conversations_and_outlive_the_app(path):
    async with started(path, FakeEngine()) as (controller, view):
        first = await say(controller, "Who?")
        view.pane.put("to the first", [Attachment("a.txt", "A")])
        controller.begin_new()
        assert (view.pane.text, view.pane.attachments) == ("", [])
        view.pane.text = "to a new one"
        await controller.open(first)
        assert (view.pane.text, len(view.pane.attachments)) == ("to the first", 1)
    async with started(path, FakeEngine()) as (controller, view):
        assert view.pane.text == "to a new one"
        await controller.open(first)
        assert (view.pane.text, view.pane.attachments) == ("to the first", [Attachment("a.txt", "A")])


async def test_a_question_that_cannot_be_answered_comes_back(path):
    engine = FakeEngine([PromptTooLong("Too long.")])
    async with started(path, engine) as (controller, view):
        await say(controller, "Long?")
        assert view.pane.text == "Long?"
        assert [type(error) for error in view.transcript.problems] == [PromptTooLong]


async def test_a_question_behind_comes_back_where_it_can_be_found(path):
    engine = FakeEngine(["First."], [0.5, PromptTooLong("Too long.")])
    async with started(path, engine) as (controller, view):
        first = await say(controller, "Who?")
        controller.begin_new()
        controller.ask("Long?", [])
        await until(lambda: len(engine.requests) == 2)
        await controller.open(first)
        await until(lambda: not controller.answering)
        await view.settled()
        assert "A question was not sent; Ctrl+N shows it." in view.messages
        controller.begin_new()
        assert view.pane.text == "Long?"


async def test_a_deleted_conversation_is_restored(path):
    engine = FakeEngine()
    async with started(path, engine) as (controller, view):
        first = await say(controller, "Who?")
        await run_command(controller, "delete", "")
        assert controller.deleted == [first]
        assert view.transcript.text == ""
        assert engine.forgotten == [first]
        await undo_delete(controller)
        assert controller.deleted == []
        assert view.transcript.text == "Who?\nHello there."
        view.says_yes = False
        await delete(controller, first, ask=True)
        assert controller.shown.id == first
        view.says_yes = True
        await delete(controller, first, ask=True)
        await purge(controller, first)
        assert controller.deleted == []
        with pytest.raises(ChatNotFound):
            await restore(controller, first)


async def test_a_conversation_that_is_answered_is_not_deleted(path):
    async with started(path, FakeEngine(["One ", 30.0])) as (controller, view):
        controller.ask("Count.", [])
        await until(lambda: "One" in view.transcript.text)
        await run_command(controller, "delete", "")
        assert [type(error) for error in view.errors] == [ChatBusy]
        await controller.shown.stop()
        await until(lambda: not controller.answering)


@pytest.mark.parametrize(
    ("name", "argument", "error"),
    [
        ("expotr", "", CommandError),
        ("rename", "", CommandError),
        ("new", "x", CommandError),
        ("set", "temperature 9", SettingsError),
        ("think", "maybe", SettingsError),
        ("preset", "none", SettingsError),
        ("model", "huge", DoesNotFit),
        ("retry", "", ChatNotFound),
        ("copy", "", ChatNotFound),
    ],
)
async def test_a_wrong_command_is_told_and_put_back(path, name, argument, error):
    async with started(path, FakeEngine()) as (controller, view):
        await run_command(controller, name, argument)
        assert [type(one) for one in view.errors] == [error]
        assert view.pane.text == f"/{name} {argument}"
        view.pane.text = "something else by now"
        await run_command(controller, name, argument)
        assert view.pane.text == "something else by now"


async def test_commands_change_the_conversation(path):
    engine = FakeEngine(["One."], ["Another one."])
    async with started(path, engine) as (controller, view):
        await run_command(controller, "system", "Be brief.")
        await run_command(controller, "set", "temperature 0.3")
        chat = await say(controller, "1?")
        assert engine.requests[0].sampling.temperature == 0.3
        assert [message.content for message in engine.requests[0].messages] == ["Be brief.", "1?"]
        await run_command(controller, "rename", "A title")
        await run_command(controller, "pin", "")
        stored = await (await controller.session.store()).find(chat)
        assert (stored.title, stored.pinned) == ("A title", True)
        await run_command(controller, "retry", "")
        await until(lambda: not controller.shown.is_answering)
        assert view.transcript.text.endswith("1?\nAnother one.")
        await run_command(controller, "copy", "")
        assert view.clipboard == "Another one."
        await run_command(controller, "theme", "dark")
        assert view.performed == [("theme", "dark")]
        assert view.errors == []


async def test_the_model_is_switched_but_not_while_a_reply_is_generated(path):
    engine = FakeEngine(["One ", 30.0], ["Two."])
    async with started(path, engine) as (controller, view):
        controller.ask("Count.", [])
        await until(lambda: "One" in view.transcript.text)
        controller.begin_new()
        await run_command(controller, "model", "tiny")
        assert [type(error) for error in view.errors] == [ChatBusy]
        assert engine.n_closed == 0
        (counting,) = controller.answering
        await controller.open(counting)
        await controller.shown.stop()
        await until(lambda: not controller.answering)
        await run_command(controller, "model", "tiny")
        assert (view.model, engine.n_closed) == ("tiny", 1)
        await run_command(controller, "model", "")
        assert view.performed == [("model", "")]  # the screen lists the models, and says which one answers
        await say(controller, "Again.")
        store = await controller.session.store()
        assert [chat.model for chat in await store.chats()] == ["tiny"]
        assert await store.preference("model") == "tiny"


async def test_a_load_that_fails_is_told_in_the_transcript(path):
    engine = FakeEngine()
    engine.load_error = EngineCrashed("The worker died.")
    async with started(path, engine) as (_, view):
        assert [error.message for error in view.transcript.problems] == ["The worker died."]
        assert view.activities[-1] == ""


async def test_an_error_in_the_background_reaches_the_view(path):
    async with started(path, FakeEngine()) as (controller, view):
        view.run_in_background(controller.open("0" * 32))
        await view.settled()
        assert [type(error) for error in view.errors] == [ChatNotFound]


async def test_turns_are_edited_quoted_and_switched(path):
    engine = FakeEngine(["To one."], ["To two."])
    async with started(path, engine) as (controller, view):
        await say(controller, "One?")
        question, reply = (turn.id for turn in controller.shown.turns)
        assert can(controller, question, "edit")
        assert not can(controller, reply, "edit")
        view.pane.text = "half"
        act(controller, question, "edit")
        assert (view.pane.text, view.pane.title) == ("One?", "editing · Esc cancels")
        assert controller.has_prompt_aside
        view.pane.text = ""  # as a prompt does that is sent
        controller.ask("Two?", [])
        await until(lambda: not controller.shown.is_answering)
        assert view.pane.text == "half"
        assert view.transcript.text == "Two?\nTo two."
        act(controller, controller.shown.turns[0].id, "other(-1)")
        await view.settled()
        assert view.transcript.text == "One?\nTo one."
        act(controller, reply, "copy_code")
        assert [type(error) for error in view.errors] == [ChatNotFound]


async def test_closing_saves_a_reply_that_is_generated(path):
    async with started(path, FakeEngine(["One ", 30.0, "two"])) as (controller, view):
        controller.ask("Count.", [])
        await until(lambda: "One" in view.transcript.text)
        chat = controller.shown.id
    store = await Store.open(path)
    _, turns = await store.load(chat)
    assert [(turn.content, turn.state) for turn in turns][1:] == [("One ", "interrupted")]
    await store.close()
