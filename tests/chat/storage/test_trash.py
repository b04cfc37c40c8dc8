import asyncio
import sqlite3

import pytest

from edgechat.base.errors import ChatNotFound
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Attachment, Chat, Turn
from edgechat.chat.storage import store as store_module
from edgechat.chat.storage.store import Store
from tests.fakes import FakeEngine, send


async def put(store, name, text="Hi", **fields):
    plain = {"title": text, "model": "m", "date": "d", "created_at": 1.0, "updated_at": 1.0}
    chat = Chat(id=name, **(plain | fields))
    turn = Turn(
        id=f"t{name}",
        chat_id=name,
        role="user",
        content=text,
        created_at=1.0,
        attachments=(Attachment("a.txt", f"attached {text}"),),
    )
    await store.add_turn(turn, chat=chat)


def raw(path):
    return b"".join(file.read_bytes() for file in path.parent.glob("chats.db*"))


async def test_what_is_in_the_trash_is_nowhere_to_be_seen_and_comes_back(path):
    store, other = await Store.open(path), await Store.open(path)
    await put(store, "aaaaaaaa", "pelican")
    await put(store, "bbbbbbbb", "heron")
    await store.trash("aaaaaaaa")
    for one in (store, other):
        assert [chat.id for chat in await one.chats()] == ["bbbbbbbb"]
        assert [head.chat.id for head in await one.headlines()] == ["bbbbbbbb"]
        assert [listed.chat.id for listed in await one.listed(9)] == ["bbbbbbbb"]
        latest = await one.latest("app")
        assert latest.id == "bbbbbbbb"
        assert await one.search("pelican") == []
        assert await one.recent_questions() == ["heron"]
        for lost in (one.find("aaaa"), one.load("aaaaaaaa")):
            with pytest.raises(ChatNotFound):
                await lost
    await other.restore("aaaaaaaa")
    await store.close()
    assert [hit.chat.id for hit in await other.search("pelican")] == ["aaaaaaaa"]
    await other.close()


async def test_the_trash_outlives_the_program_and_what_was_computed_does_not(path, home, running):
    states = home / "cache" / "states"
    states.mkdir(parents=True)
    store = await Store.open(path)
    for name in ("aaaaaaaa", "bbbbbbbb"):
        await put(store, name, f"xyzzy{name}")
        (states / f"{name}.state").write_bytes(b"computed")
    await store.trash("aaaaaaaa")
    assert [file.name for file in states.iterdir()] == ["bbbbbbbb.state"]
    (states / "aaaaaaaa.state").write_bytes(b"computed by a program that had it open")
    await store.close()
    store = running(await Store.open(path))
    assert [file.name for file in states.iterdir()] == ["bbbbbbbb.state"]
    assert [(one.chat.id, one.n_messages) for one in await store.listed(9, trashed=True)] == [("aaaaaaaa", 1)]
    await store.restore("aaaaaaaa")
    assert await store.listed(9, trashed=True) == []
    (hit,) = await store.search("xyzzyaaaaaaaa")
    assert hit.chat.trashed_at is None


async def test_after_thirty_days_it_is_gone_for_good(path):
    store = await Store.open(path)
    for name, days in (("aaaaaaaa", 29.9), ("bbbbbbbb", 30.1)):
        await put(store, name, f"xyzzy{name}")
        await store.trash(name)
        store._db.execute(
            "UPDATE conversations SET trashed_at = trashed_at - ? WHERE id = ?", (days * 86400, name)
        )
        await store.trash(name)  # which does not begin the time anew
    await store.close()
    store = await Store.open(path)
    assert [one.chat.id for one in await store.listed(9, trashed=True)] == ["aaaaaaaa"]
    with pytest.raises(ChatNotFound, match="permanently"):
        await store.restore("bbbbbbbb")
    await store.close()
    assert b"xyzzyaaaaaaaa" in raw(path)
    assert b"xyzzybbbbbbbb" not in raw(path)


async def test_a_cache_that_cannot_be_read_keeps_no_store_shut(path, home, running):
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "states").write_text("no folder")
    store = await Store.open(path)
    await put(store, "aaaaaaaa")
    await store.trash("aaaaaaaa")
    store._db.execute("UPDATE conversations SET trashed_at = 1")
    await store.close()
    store = running(await Store.open(path))
    assert await store.listed(9, trashed=True) == []


@pytest.mark.parametrize("bound", ["_TRASH_CHATS", "_TRASH_BYTES"])
async def test_what_came_first_makes_room(path, monkeypatch, bound, running):
    monkeypatch.setattr(store_module, bound, {"_TRASH_CHATS": 2, "_TRASH_BYTES": 3_000}[bound])
    store = running(await Store.open(path))
    for name in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        await put(store, name, name[0] * 500)  # twice, with the attachment
        await store.trash(name)
    assert [one.chat.id for one in await store.listed(9, trashed=True)] == ["cccccccc", "bbbbbbbb"]
    await put(store, "dddddddd", "d" * 5000)
    await store.trash("dddddddd")
    left = [one.chat.id for one in await store.listed(9, trashed=True)]
    assert left == (["dddddddd"] if bound == "_TRASH_BYTES" else ["dddddddd", "cccccccc"])


async def test_an_id_is_looked_for_where_it_is_asked_for(store):
    for name in ("abcd0001", "abcd0002"):
        await put(store, name)
    await store.trash("abcd0001")
    assert (await store.find("abcd")).id == "abcd0002"
    assert (await store.find("abcd", trashed=True)).id == "abcd0001"
    with pytest.raises(ChatNotFound, match="2 conversations"):
        await store.find("abcd", trashed=None)
    with pytest.raises(ChatNotFound, match="in the trash") as told:
        await store.find("abcd0001")
    assert told.value.hint == "To restore it: edgechat chats restore abcd0001"
    with pytest.raises(ChatNotFound, match="no conversation 'abcd0002' in the trash"):
        await store.find("abcd0002", trashed=True)


async def test_words_leave_the_index_with_their_chat(path):
    def index():
        return b"".join(block for (block,) in sqlite3.connect(path).execute("SELECT block FROM said_data"))

    store = await Store.open(path)
    for number in range(30):
        await put(
            store, f"aaaaaa{number:02}", "qqfrob" if number == 7 else "jjhtml" if number == 3 else "words"
        )
    assert b"qqfrob" in index()
    assert b"jjhtml" in index()
    await store.trash("aaaaaa07")
    await store.purge()
    assert b"qqfrob" not in index()
    assert b"jjhtml" in index()
    await store.delete("aaaaaa03")
    assert b"jjhtml" not in index()
    await store.close()
    assert b"qqfrob" not in raw(path)
    assert b"jjhtml" not in raw(path)


@pytest.mark.slow
async def test_a_chat_of_many_turns_can_be_deleted(store, path):
    chat = Chat(id="aaaaaaaa", title="Long", model="m", date="d", created_at=1.0, updated_at=1.0)
    fields = {"chat_id": "aaaaaaaa", "role": "user", "content": "x", "created_at": 1.0}
    turns = [Turn(id=f"x{n}", parent_id=f"x{n - 1}" if n else None, **fields) for n in range(1500)]
    await store.add(chat, turns)
    assert len((await store.load("aaaaaaaa"))[1]) == 1500
    await store.delete("aaaaaaaa")
    assert await store.chats() == []
    assert sqlite3.connect(path).execute("SELECT count(*) FROM turns").fetchone() == (0,)


async def test_headlines_are_the_pinned_ones_and_then_those_used_last(store):
    for name in ("aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"):
        await put(store, name)
    await store.update_chat("bbbbbbbb", pinned=True)
    await store.update_chat("aaaaaaaa", pinned=True)
    await store.update_chat("aaaaaaaa", pinned=False)

    async def names(*window):
        return [head.chat.id[0] for head in await store.headlines(*window)]

    assert await names() == ["b", "d", "c", "a"]
    assert await names(2, 1) == ["d", "c"]
    conversation = await Conversation.load(store, "aaaaaaaa")
    assert not any(head.writing for head in await store.headlines())
    events = send(conversation, FakeEngine(["One ", 5.0]), "Go.")
    await anext(events)
    assert [head.chat.id[0] for head in await store.headlines() if head.writing] == ["a"]
    assert await names() == ["b", "a", "d", "c"]
    await events.aclose()
    assert not any(head.writing for head in await store.headlines())


async def test_recent_questions_come_once_each(store):
    conversation = Conversation(store, "guide", system="Not asked.")
    for text in ("one", "two", "one", "three"):
        async for _ in send(conversation, FakeEngine(["Answer."]), text):
            pass
    assert await store.recent_questions() == ["three", "one", "two"]
    assert await store.recent_questions(1) == ["three"]


async def test_the_version_tells_of_others_writing_only(path):
    store, other = await Store.open(path), await Store.open(path)
    before = await store.version()
    await put(store, "aaaaaaaa")
    assert await store.version() == before
    await put(other, "bbbbbbbb")
    after = await store.version()
    assert after != before
    assert await store.version() == after
    await asyncio.gather(store.close(), other.close())
