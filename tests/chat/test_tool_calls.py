"""A reply that calls tools: asked about, answered, stopped, interrupted, continued; stored throughout."""

import asyncio
import json

import pytest

from edgechat.base.errors import EngineCrashed, PromptTooLong, StoreError
from edgechat.base.images.image import PLACE
from edgechat.chat.attachments import ChatImages
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.export import to_json, to_markdown
from edgechat.chat.import_export.importing import add_chat, parse_chat
from edgechat.chat.messages import AFTER_RESULT
from edgechat.chat.records import ChatSettings
from edgechat.chat.reply.calls import UseChanged
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Finished, Message, ToolCall
from edgechat.tools.tool import ToolResult
from tests.chat.offering import Shelf, call
from tests.chat.test_images import SEEING, png
from tests.fakes import MODEL, FakeEngine, thought

READ = "shelf__read"
WRITE = "shelf__write"
FROM_TOOL = AFTER_RESULT["answered"]


async def drain(events):
    return [event async for event in events]


async def stored(store, conversation):
    _, turns = await store.load(conversation.chat.id)
    assert turns == conversation.all_turns
    return turns[-1]


async def asked(store, question="What is in it?"):
    conversation = Conversation(store, "guide")
    await conversation.ask(question)
    return conversation


def uses(turn):
    return [use for part in turn.rounds for use in part.uses]


async def test_results_go_into_the_next_request(store):
    engine = FakeEngine([thought("Hm."), "Let me look.", call(READ, book="a")], ["It ", "says a."])
    shelf, conversation = Shelf(), await asked(store)
    events = await drain(conversation.answer(engine, access=shelf.access()))
    assert shelf.calls == [("read", {"book": "a"})]
    reply = await stored(store, conversation)
    assert (reply.content, reply.thinking, reply.state) == ("It says a.", "", "complete")
    (part,) = reply.rounds
    assert (part.content, part.thinking) == ("Let me look.", "Hm.")
    (use,) = part.uses
    assert (use.server, use.tool, use.outcome, use.result) == (
        "shelf",
        "read",
        "answered",
        "read {'book': 'a'}",
    )
    first, second = engine.requests
    assert second.messages == (
        *first.messages,
        Message("assistant", "Let me look.", "Hm.", (call(READ, book="a"),)),
        Message("tool", f"read {{'book': 'a'}}\n\n{FROM_TOOL}", call_id="call-shelf__read"),
    )
    assert [tool.name for tool in second.tools] == [READ, WRITE]
    assert second.tools == first.tools
    assert second.chat == first.chat
    assert second.id != first.id
    changes = [event for event in events if isinstance(event, UseChanged)]
    assert [(one.use.outcome, one.running) for one in changes] == [
        ("open", False),
        ("open", True),
        ("answered", False),
    ]
    assert len([event for event in events if isinstance(event, Finished)]) == 2


async def test_the_next_question_follows_calls_and_results(store):
    engine = FakeEngine([call(READ)], ["Done."], ["Yes."])
    conversation = await asked(store)
    await drain(conversation.answer(engine, access=Shelf().access()))
    await conversation.ask("Sure?")
    await drain(conversation.answer(engine))
    roles = [(one.role, one.content) for one in engine.requests[-1].messages]
    result = ("tool", f"read {{}}\n\n{FROM_TOOL}")
    assert roles[1:] == [("assistant", ""), result, ("assistant", "Done."), ("user", "Sure?")]
    assert engine.requests[-1].tools == ()


async def test_figures_are_of_the_whole_reply(store):
    conversation = await asked(store)
    await drain(conversation.answer(FakeEngine([call(READ)], ["a", "b"]), access=Shelf().access()))
    figures = conversation.turns[-1].figures
    assert (figures.reason, figures.usage.completion_tokens) == ("stop", 3)


async def test_readers_run_at_once_and_writers_alone_in_order(store):
    async def answer(name, arguments):
        await asyncio.sleep(0.01)
        return f"{arguments['n']} beside {shelf.running - 1}"

    shelf, conversation = Shelf(answer), await asked(store)
    names = [READ] * 6 + [WRITE, READ, WRITE]
    calls = [call(name, f"c{n}", n=n) for n, name in enumerate(names)]
    await drain(conversation.answer(FakeEngine(calls, ["Done."]), access=shelf.access()))
    assert shelf.most_running == 4
    assert [arguments["n"] for _, arguments in shelf.calls] == list(range(9))
    results = [use.result for use in uses(conversation.turns[-1])]
    assert [result.split()[0] for result in results] == [str(n) for n in range(9)]
    assert [result.split()[-1] for result in results[6:]] == ["0"] * 3


async def test_what_is_not_allowed_is_not_called(store):
    async def only_reading(tool, arguments):
        return tool.name == "read"

    shelf, conversation = Shelf(), await asked(store)
    engine = FakeEngine([call(WRITE), call(READ)], ["Done."])
    await drain(conversation.answer(engine, access=shelf.access(only_reading)))
    assert shelf.calls == [("read", {})]
    refused, read = uses(await stored(store, conversation))
    assert (refused.outcome, read.outcome) == ("refused", "answered")
    assert engine.requests[-1].messages[-2].content == "The user did not allow this call."


async def test_consent_that_cannot_be_kept_is_none(store):
    async def broken(tool, arguments):
        raise StoreError("The disk is full.")

    shelf, conversation = Shelf(), await asked(store)
    events = await drain(
        conversation.answer(FakeEngine([call(WRITE)], ["Sorry."]), access=shelf.access(broken))
    )
    assert shelf.calls == []
    assert uses(conversation.turns[-1])[0].outcome == "failed"
    assert any(isinstance(event, UseChanged) and event.error is not None for event in events)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (ToolCall("1", "shelf__burn", "{}"), "there is no tool"),
        (ToolCall("1", READ, '{"book": '), "not valid JSON"),
        (ToolCall("1", READ, "[1]"), "not a JSON object"),
    ],
)
async def test_a_wrong_call_is_told_to_the_model(store, wrong, why):
    shelf, conversation = Shelf(), await asked(store)
    engine = FakeEngine([wrong], ["Oh."])
    await drain(conversation.answer(engine, access=shelf.access()))
    assert shelf.calls == []
    assert why in engine.requests[1].messages[-1].content
    assert uses(await stored(store, conversation))[0].outcome == "failed"


async def test_results_leave_room_in_the_context(store):
    async def much(name, arguments):
        return "x" * 100_000

    conversation = await asked(store)
    engine = FakeEngine([call(READ, "1"), call(READ, "2")], ["Long."])
    await drain(conversation.answer(engine, access=Shelf(much).access()))
    lengths = [len(use.result) for use in uses(conversation.turns[-1])]
    assert sum(lengths) <= 3 * (4096 - 20) // 2


class Drawing(Shelf):
    """Returns an image, and what is none."""

    async def call(self, tool, arguments):
        return ToolResult(text="Here.", images=(png(8, 4), b"none"))


@pytest.mark.slow
@pytest.mark.parametrize("sees", [True, False])
async def test_images_of_results_are_for_models_that_see(store, sees):
    engine, conversation = FakeEngine([call(READ)], ["Oh."], ["Red."]), await asked(store)
    engine.model = SEEING if sees else MODEL
    await drain(conversation.answer(engine, access=Drawing().access()))
    (use,) = uses(await stored(store, conversation))
    assert use.result == "Here.\n[Images that cannot be read: 1]"
    (image,) = use.images
    assert (image.name, image.width, image.height) == ("image 1", 8, 4)
    await conversation.ask("Which colour?")
    await drain(conversation.answer(engine))
    for request in engine.requests[1:]:
        told = next(message for message in request.messages if message.role == "tool")
        assert [media.digest for media in told.media] == [image.digest] * sees
        assert told.content.count(PLACE) == sees
        assert ("Images that you cannot see: 1" in told.content) == (not sees)


async def test_images_of_results_are_kept_exported_and_deleted_with_the_chat(store):
    conversation = await asked(store)
    await drain(conversation.answer(FakeEngine([call(READ)], ["Oh."]), access=Drawing().access()))
    (image,) = conversation.turns[-1].all_images
    assert f"(Image: image 1, {image.size})" in to_markdown(conversation)
    new = parse_chat(to_json(conversation))
    await add_chat(store, new)
    assert new.turns[-1].images == ()
    assert new.turns[-1].all_images == (image,)
    for chat in (conversation.chat, new.chat):
        assert store.images.get(image.digest) is not None
        await store.delete(chat.id)
    assert store.images.get(image.digest) is None


# Rounds without end.


async def test_a_reply_that_calls_for_ever_ends_and_can_be_continued(store):
    shelf, conversation = Shelf(), await asked(store)
    engine = FakeEngine([call(READ, "1")])
    await drain(conversation.answer(engine, access=shelf.access(rounds=2)))
    assert len(shelf.calls) == 2
    assert len(engine.requests) == 3
    reply = await stored(store, conversation)
    assert (reply.state, len(reply.rounds), uses(reply)[-1].outcome) == ("complete", 3, "stopped")
    assert conversation.can_continue
    await drain(conversation.answer(engine, access=shelf.access(rounds=1)))
    assert len(shelf.calls) == 3
    assert "limit on tool calls" in engine.requests[3].messages[-1].content


# Stopping and interruptions: nothing is lost.


async def test_a_stop_ends_a_call(store):
    async def never(name, arguments):
        await asyncio.sleep(60)
        return ""

    shelf, conversation = Shelf(never), await asked(store)
    engine = FakeEngine(["Wait.", call(READ, "1"), call(READ, "2")], ["Well."])
    async for event in conversation.answer(engine, access=shelf.access()):
        if isinstance(event, UseChanged) and event.running and event.use.id == "2":
            assert await conversation.stop()
    reply = await stored(store, conversation)
    assert (reply.state, shelf.running, len(engine.requests)) == ("stopped", 0, 1)
    assert [use.outcome for use in uses(reply)] == ["stopped", "stopped"]
    assert reply.rounds[0].content == "Wait."
    assert conversation.can_continue
    await drain(conversation.answer(engine, access=shelf.access()))
    assert conversation.turns[-1].content == "Well."
    assert [one.role for one in engine.requests[1].messages] == ["user", "assistant", "tool", "tool"]


def request_is_over(event):
    return isinstance(event, Finished)


def call_is_shown(event):
    return isinstance(event, UseChanged) and not event.running


@pytest.mark.parametrize("moment", [request_is_over, call_is_shown])
async def test_a_stop_before_a_call_is_in_time(store, moment):
    shelf, conversation = Shelf(), await asked(store)
    engine = FakeEngine(["I write.", call(WRITE, text="gone")], ["Well."])
    async for event in conversation.answer(engine, access=shelf.access()):
        if moment(event):
            assert await conversation.stop()
    reply = await stored(store, conversation)
    assert (reply.state, shelf.calls, len(engine.requests)) == ("stopped", [], 1)
    assert [use.outcome for use in uses(reply)] == ["stopped"]


async def test_a_stop_after_the_calls_ends_the_reply(store, monkeypatch):
    async def find(*_):
        await conversation.stop()

    shelf, conversation = Shelf(), await asked(store)
    engine = FakeEngine([call(READ)], ["Well."])
    async for event in conversation.answer(engine, access=shelf.access()):
        if isinstance(event, UseChanged) and event.use.outcome == "answered":
            monkeypatch.setattr(ChatImages, "find", find)
    reply = await stored(store, conversation)
    assert (reply.state, len(engine.requests)) == ("stopped", 1)
    assert [use.outcome for use in uses(reply)] == ["answered"]


async def test_a_stop_ends_the_question_to_the_user(store):
    waiting = asyncio.Event()
    withdrawn = False

    async def ask(tool, arguments):
        nonlocal withdrawn
        waiting.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            withdrawn = True
            raise
        return True

    shelf, conversation = Shelf(), await asked(store)
    answering = asyncio.create_task(
        drain(conversation.answer(FakeEngine([call(WRITE)]), access=shelf.access(ask)))
    )
    await waiting.wait()
    assert await conversation.stop()
    await answering
    assert withdrawn
    assert (conversation.turns[-1].state, shelf.calls) == ("stopped", [])


async def test_a_reader_that_leaves_cancels_the_calls(store):
    async def never(name, arguments):
        await asyncio.sleep(60)
        return ""

    shelf, conversation = Shelf(never), await asked(store)
    answering = asyncio.create_task(
        drain(conversation.answer(FakeEngine([call(READ)]), access=shelf.access()))
    )
    while not shelf.running:
        await asyncio.sleep(0.01)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert shelf.running == 0
    reply = await stored(store, conversation)
    assert (reply.state, uses(reply)[0].outcome) == ("interrupted", "open")


async def test_a_crash_after_calls_keeps_them_and_the_reply_goes_on(store):
    engine = FakeEngine(["Look.", call(READ)], ["It ", EngineCrashed("It died.")], ["says a."])
    shelf, conversation = Shelf(), await asked(store)
    with pytest.raises(EngineCrashed):
        await drain(conversation.answer(engine, access=shelf.access()))
    reply = await stored(store, conversation)
    assert (reply.state, reply.content, len(reply.rounds)) == ("interrupted", "It ", 1)
    await drain(conversation.answer(engine, access=shelf.access()))
    assert conversation.turns[-1].content == "It says a."
    assert engine.requests[2].messages == (*engine.requests[1].messages, Message("assistant", "It "))
    assert len(shelf.calls) == 1


async def test_a_call_that_was_cut_off_is_kept_and_not_carried_out(store):
    engine = FakeEngine(["Look.", call(WRITE, text="long"), EngineCrashed("It died.")], ["Again."])
    shelf, conversation = Shelf(), await asked(store)
    with pytest.raises(EngineCrashed):
        await drain(conversation.answer(engine, access=shelf.access()))
    reply = await stored(store, conversation)
    (use,) = uses(reply)
    assert (use.outcome, json.loads(use.arguments), shelf.calls) == ("stopped", {"text": "long"}, [])


@pytest.mark.slow
async def test_a_program_that_dies_during_a_call_loses_no_word(store, tmp_path):
    """What is on the disk while a call runs is a whole reply, of which the call is open."""
    on_disk = []

    async def look(name, arguments):
        await asyncio.sleep(0.5)
        other = await Store.open(tmp_path / "chats.db")
        _, turns = await other.load(conversation.chat.id)
        await other.close()
        on_disk.append(turns[-1])
        return "a"

    conversation = await asked(store)
    engine = FakeEngine(["Look.", call(READ, book="a")], ["Yes."])
    await drain(conversation.answer(engine, access=Shelf(look).access()))
    (reply,) = on_disk
    assert (reply.state, reply.rounds[0].content) == ("streaming", "Look.")
    assert (uses(reply)[0].outcome, uses(reply)[0].arguments) == ("open", '{"book": "a"}')


async def test_too_long_a_result_does_not_take_the_question_back(store):
    engine = FakeEngine([call(READ)], [PromptTooLong("Too long.")])
    conversation = await asked(store)
    with pytest.raises(PromptTooLong):
        await drain(conversation.answer(engine, access=Shelf().access()))
    assert [turn.role for turn in conversation.turns] == ["user", "assistant"]
    assert (await stored(store, conversation)).state == "interrupted"


# Versions, search, files.


async def test_another_version_calls_anew(store):
    shelf, conversation = Shelf(), await asked(store)
    engine = FakeEngine([call(READ)], ["One."], [call(READ), call(WRITE)], ["Two."])
    await drain(conversation.answer(engine, access=shelf.access()))
    first = conversation.turns[-1]
    conversation.regenerate()
    await drain(conversation.answer(engine, access=shelf.access()))
    assert conversation.branches(conversation.turns[-1].id) == (1, 2)
    await conversation.switch(conversation.turns[-1].id, 0)
    assert conversation.turns[-1] == first
    assert [len(uses(turn)) for turn in conversation.versions(first.id)] == [1, 2]


async def test_calls_and_results_are_searched(store):
    async def answer(name, arguments):
        return "The heron eats C++ at dawn."

    conversation = await asked(store)
    engine = FakeEngine(["Let me peruse.", call(READ, title="Wetlands")], ["Birds."])
    await drain(conversation.answer(engine, access=Shelf(answer).access()))
    reply = conversation.turns[-1]
    for words in ("heron dawn", "wetlands", "peruse", "C++", "birds", "read"):
        assert [hit.turn_id for hit in await store.search(words)] == [reply.id], words
    (hit,) = await store.search("heron")
    assert "heron eats" in hit.snippet
    await store.delete(conversation.chat.id)
    assert await store.search("heron") == []


async def test_a_file_has_the_calls_and_turns_no_tools_on(store):
    conversation = await asked(store)
    await conversation.set_settings(ChatSettings(tools=("shelf", "files:/home/me")))
    engine = FakeEngine(["Look.", call(READ, book="```")], ["Yes."])
    await drain(conversation.answer(engine, access=Shelf().access()))
    text = to_json(conversation)
    assert "/home/me" not in text
    new = parse_chat(text)
    await add_chat(store, new)
    again = await Conversation.load(store, new.chat.id)
    assert again.turns[-1].rounds == conversation.turns[-1].rounds
    tampered = json.loads(text)
    tampered["chat"]["settings"] = {"tools": ["shelf"], "think": True}
    assert parse_chat(json.dumps(tampered)).chat.settings == ChatSettings(think=True)
    markdown = to_markdown(conversation)
    assert "Look.\n\nCall to shelf: read, answered\n\nArguments\n````\n" in markdown
    assert markdown.index("Call to shelf") < markdown.index("Yes.")
    assert (await store.load(conversation.chat.id))[0].settings.tools == ("shelf", "files:/home/me")
