import json
import time
from contextlib import aclosing, closing

import msgspec
import pytest

from edgechat.base.errors import NotAChat
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export import importing
from edgechat.chat.import_export.export import to_json, to_markdown
from edgechat.chat.import_export.importing import add_chat, parse_chat
from edgechat.chat.records import Attachment, ChatSettings
from edgechat.documents import registry
from edgechat.documents.citations import PassageSource
from edgechat.documents.indexing import update
from edgechat.settings import SamplingDefaults
from tests.fakes import FakeEngine, send, thought


async def drain(events):
    async for _ in events:
        pass


async def branched(store):
    """Return a chat with two lines, of which the first is shown."""
    conversation = Conversation(store, "guide", system="Be\x1b brief.")
    await conversation.ask("What?", [Attachment("a.txt", "attached \udce4")])
    await drain(conversation.answer(FakeEngine([thought("Hm."), "That."])))
    await conversation.edit(conversation.turns[1].id, "Who?")
    await drain(conversation.answer(FakeEngine(["I."])))
    await conversation.switch(conversation.turns[1].id, 0)
    await conversation.set_settings(ChatSettings(think=True, sampling=SamplingDefaults(top_k=3)))
    await store.update_chat(conversation.chat.id, pinned=True)
    return await Conversation.load(store, conversation.chat.id)


async def brought_in(store, text):
    new = parse_chat(text)
    await add_chat(store, new)
    return await Conversation.load(store, new.chat.id)


def shape(conversation):
    turns = conversation.all_turns
    places = {turn.id: at for at, turn in enumerate(turns)} | {None: None}
    return [
        (
            places[turn.parent_id],
            *(turn.role, turn.content, turn.thinking, turn.state, turn.created_at, turn.figures, turn.error),
            turn.attachments,
        )
        for turn in turns
    ]


async def test_all_that_was_exported_is_imported_as_often_as_one_likes(store):
    old = await branched(store)
    new, another = [await brought_in(store, to_json(old)) for _ in "ab"]
    for one in (new, another):
        assert shape(one) == shape(old)
        assert [turn.content for turn in one.turns] == ["Be\x1b brief.", "What?", "That."]
        assert one.branches(one.turns[1].id) == (0, 2)
        for name in ("title", "model", "date", "created_at", "updated_at", "settings", "pinned"):
            assert getattr(one.chat, name) == getattr(old.chat, name)
    ids = [turn.id for one in (old, new, another) for turn in one.all_turns]
    assert len({*ids, old.chat.id, new.chat.id, another.chat.id}) == len(ids) + 3
    assert len(await store.search("attached")) == 6
    await drain(send(new, FakeEngine(["Yes."]), "Go on."))


async def test_an_export_has_no_raw_control_characters(store):
    old = await branched(store)
    for text in (to_json(old), to_markdown(old)):
        assert not any((ord(one) < 32 and one not in "\n\t") or 127 <= ord(one) < 160 for one in text)
    assert json.loads(to_json(old))["version"] == 1


async def test_markdown_shows_the_line_with_its_attachments(store):
    text = to_markdown(await branched(store))
    assert text.startswith("# What?\n\n")
    assert "## You\n\na.txt\n```\nattached ?\n```\n\nWhat?\n\n## Answer\n\nThat.\n" in text
    assert "Who?" not in text


async def test_cited_places_are_listed_and_documents_stay_here(store, conversation):
    passages = [passage(1, "guide.md, lines 3–4"), passage(2, "guide.md, lines 8–9")]
    await conversation.ask("What?", passages)
    await drain(conversation.answer(FakeEngine(["So [2], and [7]. `[1]` is code."])))
    await conversation.set_settings(ChatSettings(documents=("handbook",), adapters=("/home/me/a.gguf",)))
    text = to_markdown(conversation)
    assert "## You\n\n[1] guide.md, lines 3–4\n```\nText 1.\n```\n\n[2] guide.md" in text
    assert text.endswith("`[1]` is code.\n\nSources:\n\n- [2] guide.md, lines 8–9\n")
    exported = to_json(conversation)
    assert "a.gguf" not in exported
    assert "/h/" not in exported
    new = await brought_in(store, exported)
    assert [(file.name, file.text) for file in new.turns[0].attachments] == [
        (file.name, file.text) for file in passages
    ]
    assert {file.source.path for file in new.turns[0].attachments} == {"guide.md"}
    assert new.settings == ChatSettings()
    settings = '"settings": {"documents": ["notes"], "adapters": ["b.gguf"]}'
    meddled = exported.replace('"chat": {', f'"chat": {{{settings},', 1)
    assert (await brought_in(store, meddled)).settings == ChatSettings()


async def test_passages_lead_to_the_same_documents_where_they_are(store, conversation, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "guide.md").write_text("Words.")
    with closing(registry.create("handbook")) as collection:
        collection.add_root(str(tmp_path / "elsewhere"))
        update(collection)
        (file,) = collection.files()
    sources = [
        msgspec.structs.replace(passage(1, "a").source, digest=file.digest, number=number)
        for number in (1, 2)
    ]
    other = msgspec.structs.replace(sources[1], digest="0" * 64)
    await conversation.ask("What?", [Attachment("a", "a", sources[0]), Attachment("b", "b", other)])
    new = await brought_in(store, to_json(conversation))
    paths = [one.source.path for one in new.turns[0].attachments]
    assert paths == [str(tmp_path / "elsewhere" / "guide.md"), "guide.md"]


async def test_a_question_may_have_many_passages(store, conversation):
    await conversation.ask("What?", [passage(number, "a.md") for number in range(1, 300)])
    assert len((await brought_in(store, to_json(conversation))).turns[0].attachments) == 299


def passage(number, name):
    source = PassageSource(
        number=number, collection="handbook", path="/h/guide.md", digest="", start=3, end=4, place="lines 3–4"
    )
    return Attachment(f"[{number}] {name}", f"Text {number}.", source)


async def test_a_reply_that_was_being_written_is_interrupted(store, conversation):
    async with aclosing(send(conversation, FakeEngine(["One ", 5.0]), "Count.")) as events:
        await anext(events)
        other = await Conversation.load(store, conversation.chat.id)
        assert parse_chat(to_json(other)).turns[-1].state == "interrupted"


@pytest.mark.parametrize("wrap", [lambda messages: messages, lambda messages: {"messages": messages}])
async def test_messages_of_openai_are_read(store, wrap):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "## Hi"}, {"type": "text", "text": "you"}]},
        {"role": "assistant", "content": "Hello.", "refusal": None},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    one = await brought_in(store, json.dumps(wrap(messages)))
    assert [(turn.role, turn.content) for turn in one.turns] == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "## Hi\n\nyou"),
        ("assistant", "Hello."),
        ("assistant", ""),
    ]
    assert (one.chat.title, one.system) == ("Hi", "Be brief.\n\nBe kind.")
    assert abs(one.chat.updated_at - time.time()) < 60


async def test_calls_and_their_results_are_one_reply(store):
    calls = [
        {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"book": "a"}'}},
        {"id": "2", "type": "function", "function": {"name": "find", "arguments": {"text": "b"}}},
    ]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "nothing"}]},
        {"role": "tool", "tool_call_id": "1", "content": "a book"},
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {"role": "tool", "content": "again"},
        {"role": "assistant", "content": "It is a book."},
        {"role": "user", "content": "Thanks"},
    ]
    one = await brought_in(store, json.dumps(messages))
    assert [(turn.role, turn.content) for turn in one.turns] == [
        ("user", "Hi"),
        ("assistant", "It is a book."),
        ("user", "Thanks"),
    ]
    first, second = one.turns[1].rounds
    assert first.content == "Let me look."
    told = [(use.name, use.arguments, use.outcome, use.result) for use in (*first.uses, *second.uses)]
    assert told == [
        ("read", '{"book": "a"}', "answered", "a book"),
        ("find", '{"text":"b"}', "answered", "nothing"),
        ("read", '{"book": "a"}', "answered", "again"),
    ]


async def test_a_title_and_a_model_are_taken_over():
    said = [{"role": "user", "content": "Hi"}]
    new = parse_chat("\ufeff" + json.dumps({"title": "A\x1bb\nc", "model": "gpt", "messages": said}))
    assert (new.chat.title, new.chat.model) == ("Ab c", "gpt")
    new = parse_chat(json.dumps({"title": 5, "model": [], "messages": said}))
    assert (new.chat.title, new.chat.model) == ("Hi", "")


def filed(**fields):
    turn = {"id": "a", "role": "user", "content": "Hi"}
    return json.dumps({"format": "edgechat", "version": 1, "chat": {}, "turns": [turn]} | fields)


def turn(name, **fields):
    return {"id": name, "role": "user", "content": "Hi"} | fields


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not valid JSON"),
        ("no json", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        ('{"a": 1}', "contains no conversation"),
        ("5", "contains no conversation"),
        ("[]", "contains no text"),
        ('[{"role": "system", "content": "x"}]', "contains no text"),
        ("[1]", "message 1 is not an object"),
        ('[{"role": "tool", "content": "x"}]', "message 1 is not text that answers a call"),
        ('[{"role": "function", "content": "x"}]', "message 1 has the role 'function'"),
        ('[{"role": "assistant", "tool_calls": [{}]}]', "message 1 has a call that names no function"),
        ('[{"role": ["user"], "content": "x"}]', "message 1 has the role"),
        ('[{"role": "user"}]', "the content of message 1"),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', "message 1 has parts"),
        (
            '[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]',
            "message 2 is a system prompt",
        ),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply|not valid JSON"),
        (filed(turns=[]), "contains no turns"),
        (filed(turns=[turn("a"), turn("a")]), "turn 2 has the same id"),
        (filed(turns=[turn("a", parent_id="b"), turn("b")]), "turn 1 answers a turn that"),
        (filed(turns=[turn("a"), turn("b", role="system")]), "turn 2 is a system prompt"),
        (filed(turns=[turn("a", content=5)]), r"got `int` - at `\$.turns\[0\].content`"),
        (filed(turns=[turn("a", role="tool")]), r"turns\[0\].role"),
        (filed(turns=[turn("a", attachments=[["x"]])]), "attachments"),
        (filed(turns=[turn("a", attachments=[{"name": "x", "text": "y"}] * 101)]), "more than 100 attach"),
        (filed(chat=5), r"\$.chat"),
        (filed(chat={"title": None}), r"\$.chat.title"),
        (filed(chat={"created_at": "now"}), r"\$.chat.created_at"),
        (
            filed().replace('"chat": {}', '"chat": {"created_at": 1' + "0" * 400 + "}"),
            "not valid JSON|created_at",
        ),
        (
            filed().replace('"chat": {}', '"chat": {"created_at": 1' + "0" * 9000 + "}"),
            "not valid JSON|created_at",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_why(text, why):
    with pytest.raises(NotAChat, match=why) as told:
        parse_chat(text)
    assert told.value.hint
    assert "\n" not in told.value.message


def test_a_file_of_a_newer_program_is_told():
    with pytest.raises(NotAChat, match="newer"):
        parse_chat(filed(version=2))


def test_files_are_bounded(monkeypatch):
    monkeypatch.setattr(importing, "MOST_BYTES", 2**20)
    monkeypatch.setattr(importing, "MOST_TURNS", 3)
    with pytest.raises(NotAChat, match="1 MiB long, but the limit is 1"):
        parse_chat(" " * (2**20 + 1))
    with pytest.raises(NotAChat, match="4 messages"):
        parse_chat(json.dumps([{"role": "user", "content": "x"}] * 4))
    with pytest.raises(NotAChat, match="4 turns"):
        parse_chat(filed(turns=[turn(str(number)) for number in range(4)]))


def called(n, *, parts=1):
    """Return the messages of a reply of so many parts, each with n calls that are answered last first."""
    calls = [{"id": str(at), "function": {"name": "f", "arguments": ""}} for at in range(n)]
    results = [{"role": "tool", "tool_call_id": str(at), "content": "x"} for at in reversed(range(n))]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results] * parts


@pytest.mark.parametrize("reply", [called(1000), called(499, parts=3), called(50_000)])
def test_a_reply_with_too_many_calls_is_refused_at_once(reply):
    with pytest.raises(NotAChat, match="more than 1000 calls"):
        parse_chat(json.dumps([{"role": "user", "content": "x"}, *reply]))
    assert parse_chat(json.dumps(called(499, parts=2))).turns[0].rounds[1].uses[498].result == "x"


@pytest.mark.slow
def test_many_system_prompts_are_joined_at_once():
    said = [{"role": "system", "content": "x" * 1000}] * 50_000
    new = parse_chat(json.dumps([*said, {"role": "user", "content": "Hi"}]))
    assert new.turns[0].content == "\n\n".join(["x" * 1000] * 50_000)


@pytest.mark.parametrize("when", [1e300, -5, 0, 1e12])
def test_times_that_cannot_have_been_are_now(when):
    text = filed(chat={"created_at": when, "date": "tomorrow"}, turns=[turn("a", created_at=when)])
    new = parse_chat(text)
    assert abs(new.chat.created_at - time.time()) < 60
    assert abs(new.turns[0].created_at - time.time()) < 60
    assert len(new.chat.date) == 10


async def test_what_is_no_text_can_be_stored(store):
    for text in (
        '[{"role": "user", "content": "half \\ud83d a smile"}]',
        '[{"role": "user", "content": "nul \\u0000 char"}]',
    ):
        try:
            one = await brought_in(store, text)
        except NotAChat:
            continue
        await store.search("half nul")
        assert one.turns


def test_settings_of_a_newer_program_are_read_as_far_as_they_are_known():
    new = parse_chat(filed(chat={"settings": {"think": True, "sampling": {"swirl": 2, "top_k": 4}}}))
    assert new.chat.settings == ChatSettings(think=True, sampling=SamplingDefaults(top_k=4))
    assert parse_chat(filed(chat={"settings": [1]})).chat.settings == ChatSettings()
