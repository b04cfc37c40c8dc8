"""Conversations on a disk that is full or read-only: they are read, and stay as they are."""

import contextlib
import shutil
import sqlite3

import pytest

from edgechat.base.errors import StoreUnwritable
from edgechat.base.images.image import ImageLibrary
from edgechat.chat.records import AttachedImage
from edgechat.chat.storage import statements
from edgechat.chat.storage.file import connect_to_read
from edgechat.chat.storage.migrations import MIGRATIONS
from edgechat.chat.storage.store import Store
from tests import disks
from tests.base.images.files import encoded, quadrants
from tests.chat.storage.test_store import chat, turn

KINDS = ["full", "read-only"]


@contextlib.contextmanager
def unwritable(folder, kind):
    """Make a folder's disk so; its contents stay."""
    if kind == "read-only":
        with disks.read_only(folder):
            yield
        return
    aside = folder.with_name("aside")
    shutil.copytree(folder, aside)
    with disks.small_disk(folder, "size=2m"):
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        disks.fill(folder)
        yield


@pytest.fixture
async def path(home):
    """A store with a conversation, and a reply whose program has died."""
    folder = home / "data"
    folder.mkdir(parents=True)
    store = await Store.open(folder / "chats.db")
    await store.add_turn(turn("q", content="Zebras?"), chat=chat())
    await store.add_turn(turn("a", role="assistant", content="Striped", parent_id="q", state="streaming"))
    await store.close()
    orphan(folder / "chats.db")
    return folder / "chats.db"


def orphan(path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE turns SET owner = NULL")


def contents(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file() and one.name != "fill"}


@pytest.mark.parametrize("kind", KINDS)
async def test_conversations_are_read_where_nothing_can_be_written(path, kind, running):
    before = contents(path.parent)
    with unwritable(path.parent, kind):
        with pytest.raises(StoreUnwritable, match=rf"The disk is {kind}; conversations cannot be saved"):
            await Store.open(path)
        store = running(await Store.open_to_read(path))
        assert [one.id for one in await store.chats()] == ["c1c1c1c1"]
        assert [hit.turn_id for hit in await store.search("zebras")] == ["q"]
        _, turns = await store.load("c1c1c1c1")
        assert [(one.content, one.state) for one in turns] == [
            ("Zebras?", "complete"),
            ("Striped", "interrupted"),
        ]
        assert not store.lasting
        await store.add_turn(turn("q2", parent_id="a"))  # in the copy
        await store.delete("c1c1c1c1")
        with contextlib.closing(connect_to_read(path, busy_ms=1000)) as db:
            assert [one.chat.id for one in statements.listed(db, 9)] == ["c1c1c1c1"]
        after = contents(path.parent)
        assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("kind", KINDS)
async def test_what_only_the_wal_has_is_read_too(path, kind, running):
    """A program that was killed leaves it; its -shm may be gone, as in a copy of the folder."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("UPDATE conversations SET title = 'Only in the WAL'")
    db.commit()
    for ending in ("", "-wal"):
        shutil.copy(f"{path}{ending}", f"{path.parent.parent}/new.db{ending}")
    db.close()
    for ending in ("", "-wal"):
        shutil.move(f"{path.parent.parent}/new.db{ending}", f"{path}{ending}")
    with unwritable(path.parent, kind):
        store = running(await Store.open_to_read(path))
        assert [one.title for one in await store.chats()] == ["Only in the WAL"]


async def test_conversations_of_an_earlier_edgechat_are_read(home, running):
    home.mkdir()
    with contextlib.closing(sqlite3.connect(home / "chats.db", isolation_level=None)) as db:
        db.executescript(MIGRATIONS[0])
        db.execute("PRAGMA user_version = 1")
        db.execute("INSERT INTO conversations VALUES ('c1', 'Old', 'm', 'd', 1.0, 1.0)")
    with disks.read_only(home):
        store = running(await Store.open_to_read(home / "chats.db"))
        assert [one.title for one in await store.chats()] == ["Old"]


async def test_where_there_is_no_file_there_are_no_conversations(home, running):
    home.mkdir()
    with disks.read_only(home):
        store = running(await Store.open_to_read(home / "none" / "chats.db"))
        assert await store.chats() == []
        with pytest.raises(StoreUnwritable, match="The disk is read-only"):
            await Store.open(home / "none" / "chats.db")


async def test_an_open_conversation_is_read_when_the_disk_has_become_full(small_disk, running):
    """Also one with a reply that another program was writing when it died."""
    path = small_disk / "chats.db"
    store = running(await Store.open(path))
    await store.add_turn(turn("q"), chat=chat())
    await store.add_turn(turn("a", role="assistant", parent_id="q", state="streaming"))
    orphan(path)
    disks.fill(small_disk)
    _, turns = await store.load("c1c1c1c1")
    assert [one.id for one in turns] == ["q", "a"]


async def test_the_images_of_a_copy_are_those_of_the_file_and_stay(home, running):
    folder = home / "data"
    image = ImageLibrary(folder / "images").add(encoded(quadrants(), "PNG"))
    store = await Store.open(folder / "chats.db")
    attached = AttachedImage(image.digest, "a.png", image.width, image.height)
    await store.add_turn(turn("q", images=(attached,)), chat=chat())
    await store.close()
    copy = running(await Store.copy(folder / "chats.db"))
    assert copy.images.get(image.digest) == image
    await copy.delete("c1c1c1c1")
    assert ImageLibrary(folder / "images").get(image.digest) == image
