"""The responses that the server stores: their bounds, and that what is deleted is gone."""

import asyncio
import sqlite3
import time

import pytest

from edgechat.base.errors import PromptTooLong, ResponseNotFound
from edgechat.chat.storage import responses
from edgechat.chat.storage.migrations import MIGRATIONS
from edgechat.chat.storage.responses import StoredItem, StoredResponse
from edgechat.chat.storage.store import ResponseStore, Store


def response(name, previous=None, text="x"):
    return StoredResponse(
        id=name,
        previous_id=previous,
        model="m",
        created_at=time.time(),
        body=b"{}",
        input=(StoredItem(f"in-{name}", text.encode()),),
        output=(StoredItem(f"out-{name}", b"out"),),
    )


def names(path):
    with sqlite3.connect(path) as db:
        return [name for (name,) in db.execute("SELECT id FROM responses ORDER BY created_at")]


def raw(path):
    return b"".join(file.read_bytes() for file in path.parent.glob("chats.db*"))


async def test_a_chain_goes_from_the_first_to_the_one_named(path, running):
    store = running(await ResponseStore.open(path))
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        await store.keep(response(name, previous, f"text of {name}"))
    assert await store.chain("c") == [b"text of a", b"out", b"text of b", b"out", b"text of c", b"out"]
    assert await store.chain("other") == [b"text of a", b"out", b"text of other", b"out"]
    assert await store.referenced(["in-b", "out-c", "none"]) == {"in-b": b"text of b", "out-c": b"out"}
    await store.delete("b")
    for name in ("b", "c"):
        with pytest.raises(ResponseNotFound) as error:
            await store.chain(name)
        assert error.value.id == "b"


@pytest.mark.parametrize(("bound", "value"), [("MOST_RESPONSES", 2), ("CHAIN_ITEMS", 5), ("CHAIN_BYTES", 11)])
async def test_a_chain_is_bounded(path, monkeypatch, bound, value, running):
    store = running(await ResponseStore.open(path))
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        await store.keep(response(name, previous))
    assert len(await store.chain("c")) == 6
    monkeypatch.setattr(responses, bound, value)
    with pytest.raises(PromptTooLong):
        await store.chain("c")


async def test_a_circle_in_a_damaged_file_ends(path, running):
    store = running(await ResponseStore.open(path))
    await store.keep(response("a", "b"))
    await store.keep(response("b", "a"))
    with pytest.raises(PromptTooLong):
        await store.chain("b")


@pytest.mark.parametrize(("bound", "value"), [("MOST_RESPONSES", 3), ("MOST_BYTES", 60)])
async def test_the_oldest_make_room_and_a_chain_in_use_is_not_old(path, monkeypatch, bound, value, running):
    monkeypatch.setattr(responses, bound, value)
    store = running(await ResponseStore.open(path))
    text = "x" * 13  # 18 bytes each, with the rest
    for name, previous in (("a", None), ("old", None), ("b", "a"), ("c", "b")):
        await store.keep(response(name, previous, text))
    assert names(path) == ["a", "b", "c"]
    await store.keep(response("large", None, "y" * 70))
    assert "large" in names(path)
    assert len(names(path)) == (3 if bound == "MOST_RESPONSES" else 1)


@pytest.mark.parametrize("opens", [ResponseStore.open, Store.open])
async def test_after_thirty_days_they_are_gone_whatever_opens_the_file(path, opens, monkeypatch):
    store = await ResponseStore.open(path)
    for name, previous in (("old", None), ("a", None)):
        await store.keep(response(name, previous, f"pelican {name}"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE responses SET used_at = used_at - 29.9 * 86400")
    await store.keep(response("b", "a"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE responses SET used_at = used_at - 0.2 * 86400")
    await store.close()
    assert b"pelican old" in raw(path)
    await (await opens(path)).close()
    assert names(path) == ["a", "b"]
    assert b"pelican old" not in raw(path)
    assert b"pelican a" in raw(path)


async def test_what_is_deleted_is_not_in_the_file_any_more(path):
    store, other = await ResponseStore.open(path), await Store.open(path)
    await store.keep(response("a", text="heron " * 5000))
    await store.keep(response("b"))
    assert b"heron" in raw(path)
    assert await store.delete("a")
    assert not await store.delete("a")
    assert b"heron" not in raw(path)
    assert names(path) == ["b"]
    await asyncio.gather(store.close(), other.close())


async def test_a_file_of_an_earlier_version_gets_the_tables(path, running):
    with sqlite3.connect(path) as db:
        for script in MIGRATIONS[:4]:
            db.executescript(script)
        db.execute("PRAGMA user_version = 4")
    store = running(await ResponseStore.open(path))
    await store.keep(response("a"))
    assert names(path) == ["a"]
