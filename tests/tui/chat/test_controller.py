"""The chat without a terminal: the real controller, store and conversations, a view that only remembers."""

import asyncio
import sqlite3
import subprocess
import sys

import msgspec
import pytest

from edgechat.base.errors import (
    ChatBusy,
    ChatNotFound,
    CommandError,
    DoesNotFit,
    EngineCrashed,
    ModelNotFound,
    PromptTooLong,
    SettingsError,
)
from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store
from edgechat.settings import Settings
from edgechat.tui.chat.commands import act, can, delete, purge, restore, run_command, undo_delete
from tests.fakes import MODEL, FakeEngine
from tests.tui import driving
from tests.tui.chat.views import say, started, until


def plan(model):
    if model == "huge":
        raise DoesNotFit("huge does not fit.")
    return driving.plan(model)


@pytest.mark.slow
def test_nothing_of_it_imports_textual():
    names = ("controller", "commands")
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


@pytest.mark.slow
async def test_a_conversation_is_left_and_opened_while_it_is_answered(path):
    left = asyncio.Event()
    engine = FakeEngine(["First."], ["One ", left, "two."])
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
        left.set()
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


@pytest.mark.slow
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
        assert controller._background == []


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
        assert view.errors[0].message.startswith("An answer is being generated there")
        await controller.shown.stop()
        await until(lambda: not controller.answering)


@pytest.mark.parametrize(
    ("name", "argument", "error", "told"),
    [
        ("expotr", "", CommandError, "No such command"),
        ("rename", "", CommandError, "TITLE"),
        ("new", "x", CommandError, "/new"),
        ("set", "temperature 9", SettingsError, "temperature"),
        ("set", "tmeperature 1", SettingsError, "No such parameter"),
        ("think", "maybe", SettingsError, "on, off or auto"),
        ("preset", "none", SettingsError, "No such preset"),
        ("model", "huge", DoesNotFit, "huge does not fit."),
        ("retry", "", ChatNotFound, ""),
        ("copy", "", ChatNotFound, ""),
    ],
)
async def test_a_wrong_command_is_told_and_put_back(path, name, argument, error, told):
    async with started(path, FakeEngine(), prepare=plan) as (controller, view):
        await run_command(controller, name, argument)
        assert [type(one) for one in view.errors] == [error]
        assert told in f"{view.errors[0].message} {view.errors[0].hint}"
        assert view.pane.text == f"/{name} {argument}"
        view.pane.text = "something else by now"
        await run_command(controller, name, argument)
        assert view.pane.text == "something else by now"


async def test_requests_carry_the_chat_and_the_overflow_of_the_settings(path):
    engine = FakeEngine()
    chats = []
    for settings in (Settings(titles=False), Settings(titles=False, overflow="error")):
        async with started(path, engine, settings=settings) as (controller, _):
            chats.append(await say(controller, "Hi"))
    found = [(request.chat, request.overflow, request.priority) for request in engine.requests]
    assert found == [(chats[0], "window", "interactive"), (chats[1], "error", "interactive")]


async def test_what_the_settings_say_of_new_chats_is_heeded(path):
    engine = FakeEngine()
    said = Settings(system="Be kind.", think=False, titles=False)
    async with started(path, engine, settings=said) as (controller, _):
        for can_switch, think in ((False, None), (True, False)):
            engine.model = msgspec.structs.replace(MODEL, can_switch_thinking=can_switch)
            controller.begin_new()
            await say(controller, "Hi")
            request = engine.requests[-1]
            assert (request.messages[0].content, request.think) == ("Be kind.", think)


async def test_parameters_are_set_for_one_conversation_alone(path):
    engine = FakeEngine()
    async with started(path, engine) as (controller, view):
        for name, argument in (("set", "temperature 0.3"), ("system", "Be brief."), ("set", "top_k 7")):
            await run_command(controller, name, argument)
        assert "top_k is 7" in view.messages[-1]
        for parameters, contents in (((0.3, 7), ["Be brief.", "Hi"]), ((0.8, 40), ["Hi"])):
            await say(controller, "Hi")
            request = engine.requests[-1]
            assert (request.sampling.temperature, request.sampling.top_k) == parameters
            assert [message.content for message in request.messages] == contents
            controller.begin_new()


async def test_commands_change_the_conversation(path):
    engine = FakeEngine(["One."], ["Another one."])
    async with started(path, engine) as (controller, view):
        await run_command(controller, "system", "Be brief.")
        await run_command(controller, "set", "temperature 0.3")
        chat = await say(controller, "1?")
        assert engine.requests[0].sampling.temperature == 0.3
        assert [message.content for message in engine.requests[0].messages] == ["Be brief.", "1?"]
        await run_command(controller, "rename", "A title")
        for pinned in (True, False):
            await run_command(controller, "pin", "")
            stored = await (await controller.session.store()).find(chat)
            assert (stored.title, stored.pinned) == ("A title", pinned)
        await run_command(controller, "retry", "")
        await until(lambda: not controller.shown.is_answering)
        assert view.transcript.text.endswith("1?\nAnother one.")
        await run_command(controller, "copy", "")
        assert view.clipboard == "Another one."
        await run_command(controller, "theme", "dark")
        assert view.theme == "dark"
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
        assert view.performed == [
            "screen.switch_model"
        ]  # the screen lists the models, and says which one answers
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
        assert view.errors[0].message.startswith("There is no conversation")


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
        assert controller.prompt.has_aside
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


async def test_closing_saves_replies_that_are_generated(path):
    async with started(path, FakeEngine(["One ", 30.0, "two"])) as (controller, view):
        for question in ("Count.", "Count too."):  # the first one goes on behind the second
            controller.ask(question, [])
            await until(lambda: "One" in view.transcript.text)
            if question == "Count.":
                controller.begin_new()
    store = await Store.open(path)
    for chat in await store.chats():
        _, turns = await store.load(chat.id)
        assert [(turn.content, turn.state) for turn in turns][1:] == [("One ", "interrupted")]
    await store.close()


@pytest.mark.slow
async def test_a_model_that_is_given_up_while_it_loads_is_no_crash(path):
    engine = FakeEngine(["Here."], load_seconds=0.6)
    async with started(path, engine) as (controller, view):
        for model in ("mistral-7b", "tiny"):  # the first model's load is given up
            view.run_in_background(controller.switch_model(model))
            await until(lambda model=model: engine.plan.model_name == model)
        await view.settled()
        assert any("Switched to tiny" in words for words in view.messages)
        assert not any("mistral" in words or "closed" in words for words in view.messages)
        assert (view.errors, view.transcript.problems) == ([], [])
        await say(controller, "Who?")
        assert "Here." in view.transcript.text
        assert await (await controller.session.store()).preference("model") == "tiny"


async def test_a_question_is_kept_until_it_is_in_the_store(path):
    async with started(path, FakeEngine()) as (controller, _):
        chat = await say(controller, "One")
        store, begun = await controller.session.store(), asyncio.Event()

        async def slow(*_, **__):
            begun.set()
            await asyncio.sleep(60)

        store.add_turn = slow
        controller.ask("Never lost", [])
        await begun.wait()
    store = await Store.open(path)
    assert "Never lost" in await store.unsent(chat)
    await store.close()


async def test_a_retry_that_cannot_begin_leaves_the_reply(path):
    def prepare(model):
        if gone:
            raise ModelNotFound("There is no guide.")
        return plan(model)

    gone = False
    async with started(path, FakeEngine(), prepare=prepare) as (controller, view):
        await say(controller, "Who?")
        gone, controller.session._engine = True, None
        controller.retry()
        await until(lambda: bool(view.transcript.problems) and not controller.shown.is_answering)
        assert view.transcript.problems[-1].message == "There is no guide."
        assert view.transcript.text == "Who?\nHello there."
        assert [turn.content for turn in controller.shown.conversation.turns] == ["Who?", "Hello there."]


@pytest.mark.slow
async def test_branches_are_not_switched_while_the_store_is_locked(path, monkeypatch):
    monkeypatch.setattr("edgechat.chat.storage.store.BUSY_MS", 300)
    async with started(path, FakeEngine(["One."], ["Two."])) as (controller, view):
        await say(controller, "Hi")
        controller.retry()
        await until(lambda: not controller.shown.is_answering)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        act(controller, controller.shown.turns[-1].id, "other(-1)")
        await view.settled()
        other.close()
        assert "Another program has locked" in view.errors[-1].message
        assert view.transcript.text == "Hi\nTwo."


@pytest.mark.slow
async def test_a_full_disk_is_told_while_the_reply_comes(path):
    full = asyncio.Event()
    engine = FakeEngine(["Hello ", full, "you " * 10_000, 30.0, "."])
    async with started(path, engine) as (controller, view):
        controller.ask("Hi?", [])
        await until(lambda: "Hello" in view.transcript.text)
        store = await controller.session.store()
        store._db.execute("PRAGMA max_page_count = 1")
        full.set()
        await until(lambda: any("is not being saved" in message for message in view.messages))
        assert controller.shown.is_answering
        store._db.execute("PRAGMA max_page_count = 100000")
        await controller.shown.stop()
        await until(lambda: not controller.shown.is_answering)


async def test_odd_names_of_files_are_told(path):
    async with started(path, FakeEngine()) as (controller, view):
        await say(controller, "Who?")
        for name, argument in (("export", "~nobody/x"), ("import", "~nobody/x"), ("export", 300 * "x")):
            view.errors.clear()
            await run_command(controller, name, argument)
            await view.settled()
            assert len(view.errors) == 1, (name, argument)
