import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import time

import pytest

from edgechat.base.errors import ChatNotFound, StoreError
from edgechat.chat.records import Chat, ChatSettings, Figures, Turn
from edgechat.chat.storage.migrations import MIGRATIONS
from edgechat.chat.storage.store import Store
from edgechat.engine.types import ErrorInfo, Timings, Usage


def chat(name="c1c1c1c1"):
    return Chat(id=name, title="A title", model="guide", date="2026-08-01", created_at=1.0, updated_at=1.0)


def turn(name, *, chat_id="c1c1c1c1", **fields):
    plain = {"role": "user", "content": name, "created_at": 1.0}
    return Turn(id=name, chat_id=chat_id, **(plain | fields))


async def test_what_was_written_is_read_by_the_next_program(path, running):
    figures = Figures(reason="stop", usage=Usage(5, 0, 2), timings=Timings(1.0, 2.0, 3.0), context=4096)
    question = turn("q", content="Was heißt 'naïve'?\n\tüber\x00 \N{GRINNING FACE}")
    reply = turn("a", role="assistant", parent_id="q", thinking="hm", figures=figures)
    failed = turn(
        "b", role="assistant", state="failed", error=ErrorInfo("EngineCrashed", "It died.", "Again.")
    )
    store = await Store.open(path)
    await store.add_turn(question, chat=chat())
    await store.add_turn(reply)
    await store.add_turn(failed)
    await store.close()
    store = running(await Store.open(path))
    found, turns = await store.load("c1c1c1c1")
    assert (found.title, found.model, found.date) == ("A title", "guide", "2026-08-01")
    assert turns == [question, reply, failed]


async def test_chats_come_with_the_latest_first_and_go_with_their_turns(store, path):
    await store.add_turn(turn("q1"), chat=chat("c1c1c1c1"))
    await store.add_turn(turn("q2", chat_id="c2c2c2c2"), chat=chat("c2c2c2c2"))
    assert [one.id for one in await store.chats()] == ["c2c2c2c2", "c1c1c1c1"]
    await store.add_turn(turn("q3"))
    assert [one.id for one in await store.chats()] == ["c1c1c1c1", "c2c2c2c2"]
    await store.delete("c1c1c1c1")
    assert [one.id for one in await store.chats()] == ["c2c2c2c2"]
    with pytest.raises(ChatNotFound, match="no conversation"):
        await store.load("c1c1c1c1")
    left = sqlite3.connect(path).execute("SELECT id FROM turns").fetchall()
    assert left == [("q2",)]


async def test_the_file_is_nobody_elses_to_read(path, running):
    path.touch(mode=0o644)
    store = running(await Store.open(path))
    await store.add_turn(turn("q"), chat=chat())
    for file in path.parent.glob("chats.db*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_the_first_schema_is_brought_to_this_one(path, running):
    with sqlite3.connect(path) as db:
        db.executescript(MIGRATIONS[0])
        db.execute("PRAGMA user_version = 1")
        db.execute("INSERT INTO conversations VALUES ('old', 'A title', 'guide', '2026-08-01', 1.0, 1.0)")
    store = running(await Store.open(path))
    await store.add_turn(turn("q"), chat=chat())
    await store.update_chat("c1c1c1c1", model="guide", front="run")
    assert [(one.id, one.front) for one in await store.chats()] == [("c1c1c1c1", "run"), ("old", "app")]
    latest = await store.latest("app")
    assert latest.id == "old"


async def test_a_chat_is_found_by_the_beginning_of_its_id(store):
    for name in ("ab12", "ab34", "cd"):
        await store.add_turn(turn(name, chat_id=name), chat=chat(name))
    assert [(await store.find(name)).id for name in ("ab1", "c", " CD ")] == ["ab12", "cd", "cd"]
    with pytest.raises(ChatNotFound, match="2 conversations have ids that begin with 'ab'"):
        await store.find("ab")
    for name in ("", "x", "ab123", "%"):
        with pytest.raises(ChatNotFound, match="There is no conversation"):
            await store.find(name)


async def test_what_is_deleted_is_not_in_the_file_any_more_nor_is_its_state(path, home):
    state = home / "cache" / "states" / "c1c1c1c1.state"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"computed")
    store = await Store.open(path)
    await store.add_turn(turn("q", content="xyzzy" * 5000), chat=chat())
    await store.delete("c1c1c1c1")
    await store.close()
    assert b"xyzzy" not in path.read_bytes()
    assert not state.exists()


async def test_a_turn_in_a_chat_that_was_deleted_meanwhile_is_told(path):
    store, other = await Store.open(path), await Store.open(path)
    await store.add_turn(turn("q"), chat=chat())
    await other.delete("c1c1c1c1")
    with pytest.raises(StoreError, match="deleted in the meantime"):
        await store.add_turn(turn("r", parent_id="q"))
    await asyncio.gather(store.close(), other.close())


async def test_a_store_in_memory_touches_no_disk(home):
    store = await Store.in_memory()
    await store.add_turn(turn("q"), chat=chat())
    assert [one.id for one in await store.chats()] == ["c1c1c1c1"]
    await store.delete("c1c1c1c1")
    assert await store.chats() == []
    await store.close()
    assert not home.exists()


async def test_a_newer_schema_is_refused_and_left_alone(path):
    newer = len(MIGRATIONS) + 1
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {newer}")
    with pytest.raises(StoreError, match="newer edgechat") as caught:
        await Store.open(path)
    assert caught.value.hint is not None
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (newer,)


@pytest.mark.parametrize("damage", ["not a database at all" * 100, None])
async def test_a_damaged_file_is_told_and_left_alone(path, damage):
    if damage is None:
        store = await Store.open(path)
        await store.add_turn(turn("q"), chat=chat())
        await store.close()
        raw = bytearray(path.read_bytes())
        raw[200:] = os.urandom(len(raw) - 200)
        path.write_bytes(raw)
    else:
        path.write_text(damage)
    before = path.read_bytes()

    async def read():
        store = await Store.open(path)
        await store.load("c1c1c1c1")

    with pytest.raises(StoreError, match="damaged") as caught:
        await read()
    assert "mv '" in (caught.value.hint or "")
    assert path.read_bytes() == before


async def test_a_check_finds_what_opening_does_not(path, running):
    store = await Store.open(path)
    for number in range(200):
        await store.add_turn(turn(f"q{number}", content="x" * 500), chat=None if number else chat())
    await store.check()
    await store.close()
    raw = bytearray(path.read_bytes())
    raw[-4096 * 8 : -4096 * 4] = bytes(4096 * 4)
    path.write_bytes(raw)
    store = running(await Store.open(path))
    with pytest.raises(StoreError, match="damaged"):
        await store.check()


async def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be read or written"):
        await Store.open(tmp_path / "file" / "chats.db")


async def test_a_disk_with_no_room_to_open_is_told(small_disk):
    path = small_disk / "chats.db"
    store = await Store.open(path)
    await store.add_turn(turn("q"), chat=chat())
    await store.close()
    with pytest.raises(OSError, match="No space"), (small_disk / "fill").open("wb") as file:
        file.write(bytes(4 * 2**20))
    with pytest.raises(StoreError, match="disk is full"):
        await Store.open(path)


async def test_preferences_are_remembered(path, running):
    store = await Store.open(path)
    assert await store.preference("model") is None
    await store.set_preference("model", "a")
    await store.set_preference("model", "b")
    await store.close()
    store = running(await Store.open(path))
    assert await store.preference("model") == "b"


_WRITER = """
import asyncio, sys, time
from pathlib import Path
from edgechat.chat.records import Chat, Turn
from edgechat.chat.storage.store import Store

async def main(path, name, n):
    store = await Store.open(Path(path))
    for i in range(n):
        new = Chat(id=name, title=name, model="m", date="d", created_at=1.0, updated_at=1.0)
        turn = Turn(id=f"{name}-{i}", chat_id=name, role="user", content=str(i), created_at=time.time())
        await store.add_turn(turn, chat=None if i else new)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.slow
def test_several_programs_make_and_write_one_file_at_once(path):
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), f"w{i}", "40"], stderr=subprocess.PIPE)
        for i in range(4)
    ]
    for writer in writers:
        _, err = writer.communicate(timeout=60)
        assert writer.returncode == 0, err.decode()
    rows = sqlite3.connect(path).execute(
        "SELECT conversation_id, count(*), max(position) FROM turns GROUP BY conversation_id"
    )
    assert sorted(rows) == [(f"w{i}", 40, 39) for i in range(4)]


_STREAMER = """
import asyncio, sys, time
from pathlib import Path
from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store
from tests.fakes import FakeEngine, words, send

async def main(path):
    store = await Store.open(Path(path))
    conversation = Conversation(store, "guide")
    engine = FakeEngine(words(" ".join(f"word{i}" for i in range(10_000)), 0.01))
    async for event in send(conversation, engine, "Count."):
        if text := getattr(event, "text", ""):
            print(time.monotonic(), text, flush=True)

asyncio.run(main(sys.argv[1]))
"""


def _killed_in_mid_answer(path, seconds):
    """Stream in a process, kill it, and return what it had said and when; the time of death comes last."""
    streamer = subprocess.Popen(
        [sys.executable, "-c", _STREAMER, str(path)], stdout=subprocess.PIPE, text=True
    )
    first = streamer.stdout.readline()
    time.sleep(seconds)
    streamer.kill()
    died = time.monotonic()
    lines = [first, *streamer.stdout.readlines()]
    streamer.wait()
    said = [
        (float(line.split(" ")[0]), line.split(" ", 1)[1].rstrip("\n"))
        for line in lines
        if line.endswith("\n")
    ]
    return [*said, (died, "")]


@pytest.mark.soak
async def test_a_program_killed_in_mid_answer_loses_at_most_half_a_second(path):
    *said, (died, _) = _killed_in_mid_answer(path, 1.7)
    due = "".join(text for when, text in said if when < died - 0.55)
    store = await Store.open(path)
    (one,) = await store.chats()
    _, (question, reply) = await store.load(one.id)
    await store.close()
    assert question.content == "Count."
    assert reply.state == "interrupted"
    assert len(due) > 300
    assert reply.content.startswith(due)


async def test_a_reply_that_another_program_is_writing_is_left_alone(path):
    writer = await Store.open(path)
    await writer.add_turn(turn("q"), chat=chat())
    await writer.add_turn(turn("a", role="assistant", state="streaming"))
    reader = await Store.open(path)
    _, turns = await reader.load("c1c1c1c1")
    assert turns[-1].state == "streaming"
    await asyncio.gather(writer.close(), reader.close())


BROKEN = [
    "",
    "no JSON",
    "[1, 2",
    "7",
    '"text"',
    "[]",
    "null",
    '{"sampling": 3, "context": "x"}',
    "[" * 100_000,
    b"\xff\x00",
]


@pytest.mark.parametrize("value", BROKEN, ids=lambda value: repr(value[:12]))
async def test_a_damaged_row_costs_what_it_says_and_no_more(path, value, running):
    sound = chat("d2d2d2d2")
    store = await Store.open(path)
    await store.add(chat(), [turn("q", content="A pelican?"), turn("a", role="assistant", parent_id="q")])
    await store.add(sound, [turn("r", chat_id=sound.id, content="Another pelican.")])
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE conversations SET settings = ? WHERE id = 'c1c1c1c1'", (value,))
        db.execute("UPDATE turns SET figures = ?1, error = ?1, owner = ?1 WHERE id = 'a'", (value,))
        db.execute("DROP TRIGGER turn_was_changed")  # it reads the attachments that were
        db.execute("UPDATE turns SET attachments = ? WHERE id = 'q'", (value,))
    store = running(await Store.open(path))
    assert {one.chat.id for one in await store.listed(9)} == {"c1c1c1c1", sound.id}
    assert {one.id for one in await store.chats()} == {"c1c1c1c1", sound.id}
    assert len(await store.headlines()) == 2
    assert len(await store.search("pelican")) == 2
    assert len(await store.search("title")) == 2
    found, turns = await store.load("c1c1c1c1")
    assert found.settings == ChatSettings()
    assert [(one.content, one.attachments, one.figures, one.error) for one in turns] == [
        ("A pelican?", (), None, None),
        ("a", (), None, None),
    ]
    await store.update_chat("c1c1c1c1", settings=ChatSettings(think=True))
    assert (await store.find("c1c1")).settings.think is True


async def test_what_is_understood_of_settings_is_kept(store, path):
    await store.add(chat(), [turn("q")])
    said = '{"think": true, "sampling": {"temperature": 0.3, "top_k": "many", "new": 1}, "newer": {}}'
    with sqlite3.connect(path) as db:
        db.execute("UPDATE conversations SET settings = ?", (said,))
    (found,) = await store.chats()
    assert found.settings.think is True
    assert found.settings.sampling.given() == {"temperature": 0.3}
