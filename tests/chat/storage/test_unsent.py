import sqlite3

import pytest

from edgechat.base.errors import StoreError
from edgechat.base.process.owner import Owner, this_process
from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.migrations import MIGRATIONS
from edgechat.chat.storage.store import Store

DEAD = Owner(this_process().pid, 1.0)
"""An earlier process with this one's number."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


@pytest.fixture
async def store(path):
    opened = await Store.open(path)
    yield opened
    await opened.close()


async def begun(store):
    conversation = Conversation(store, "guide")
    await conversation.ask("Hi")
    return conversation.chat.id


async def ended_with(path, value, owner=DEAD):
    """Let a program that has ended have kept a value for its new conversation."""
    other = await Store.open(path)
    other._owner = owner
    await other.keep_unsent(None, value)
    await other.close()


async def test_each_chat_keeps_its_own(store, path):
    one, two = await begun(store), await begun(store)
    other = await Store.open(path)
    await store.keep_unsent(one, "half a")
    await store.keep_unsent(None, "of a new one \udce4")
    await other.keep_unsent(two, "another's")
    await other.keep_unsent(one, "half a thought")
    assert [await store.unsent(name) for name in (one, two, None)] == [
        "half a thought",
        "another's",
        "of a new one ?",
    ]
    for name in (one, None):
        await store.keep_unsent(name, "")
    assert [await other.unsent(name) for name in (one, two, None)] == ["", "another's", ""]
    assert sqlite3.connect(path).execute("SELECT count(*) FROM unsent").fetchone() == (1,)
    await other.close()


async def test_it_stays_in_the_trash_and_goes_with_its_chat(store, path):
    one, two, three = [await begun(store) for _ in range(3)]
    for name in (one, two, three):
        await store.keep_unsent(name, f"xyzzy{name}")
    for name in (one, two):
        await store.trash(name)
    await store.restore(one)
    assert await store.unsent(one) == f"xyzzy{one}"
    await store.purge()
    await store.delete(three)
    assert [await store.unsent(name) for name in (two, three)] == ["", ""]
    for name in ("nosuch", three):
        with pytest.raises(StoreError, match="deleted in the meantime"):
            await store.keep_unsent(name, "late")
    await store.close()
    raw = b"".join(file.read_bytes() for file in path.parent.glob("chats.db*"))
    assert f"xyzzy{one}".encode() in raw
    assert f"xyzzy{two}".encode() not in raw
    assert f"xyzzy{three}".encode() not in raw


async def test_the_newest_of_the_programs_that_have_ended_is_taken_over(store, path):
    assert await store.take_over_unsent() == ""
    await ended_with(path, "older", Owner(DEAD.pid, 2.0))
    await ended_with(path, "newer")
    assert await store.take_over_unsent() == "newer"
    assert await store.unsent(None) == "newer"
    assert await store.take_over_unsent() == ""
    await store.keep_unsent(None, "")
    assert await store.take_over_unsent() == "older"


async def test_nothing_is_taken_from_the_living_nor_over_what_is_there(store, path):
    await store.keep_unsent(None, "mine")
    other = await Store.open(path)
    other._owner = Owner(1, 5.0)  # of no process, so that `other` is another program than `store`
    assert await other.take_over_unsent() == ""
    await ended_with(path, "dead")
    await other.keep_unsent(None, "its own")
    assert await other.take_over_unsent() == ""
    assert [await one.unsent(None) for one in (store, other)] == ["mine", "its own"]
    await other.close()


async def test_a_store_in_memory_keeps_it_too():
    store = await Store.in_memory()
    await store.keep_unsent(None, "new")
    assert await store.unsent(None) == "new"
    assert await store.take_over_unsent() == ""
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.keep_unsent(None, "late")


async def test_a_file_of_the_schema_before_gets_the_table(path):
    with sqlite3.connect(path) as db:
        for script in MIGRATIONS[:3]:
            db.executescript(script)
        db.execute("PRAGMA user_version = 3")
    store = await Store.open(path)
    chat = await begun(store)
    await store.keep_unsent(chat, "kept")
    await store.close()
    store = await Store.open(path)
    assert await store.unsent(chat) == "kept"
    await store.close()
