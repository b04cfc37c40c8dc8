"""`edgechat chats`: the list, and what reads and deletes conversations."""

import asyncio
import json
import sqlite3
import subprocess

import pytest

from edgechat.base.errors import EngineCrashed
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Chat, Turn
from edgechat.chat.storage.store import Store, store_path
from tests.cli import worlds
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.cli.transcripts import transcript
from tests.fakes import FakeEngine, send
from tests.terminal import Terminal, needs_tmux


def hold(*questions, engine=None, model="guide", system=None):
    """Leave a chat in the store; return its id."""

    async def talk():
        store = await Store.open(store_path())
        conversation = Conversation(store, model, system=system)
        for question in questions:
            try:
                async for _ in send(conversation, engine or FakeEngine(), question):
                    pass
            except EngineCrashed:
                pass
        await store.close()
        return conversation.chat.id

    return asyncio.run(talk())


def put(world, *ids):
    """Leave chats with these ids, the first as the one that was used last."""

    async def write():
        store = await Store.open(store_path())
        for name in reversed(ids):
            chat = Chat(id=name, title=name, model="m", date="d", created_at=1.0, updated_at=1.0)
            turn = Turn(id=f"t{name}", chat_id=name, role="user", content="Hi", created_at=1.0)
            await store.add_turn(turn, chat=chat)
        await store.close()

    asyncio.run(write())


def states(world, *chats):
    """Leave what an engine would have kept of chats."""
    for chat in chats:
        worlds.file(world, f"home/cache/states/{chat.ljust(32, '0')}.state", "state")


def lock(world):
    """Be another program that writes."""
    other = sqlite3.connect(store_path(), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    world.request.addfinalizer(other.close)


def long(world):
    world.names["LONG"] = "x" * 300


test_what_is_printed = transcript("chats.txt", put, states, lock, long)


def test_tries_at_one_reply_count_once():
    async def talk():
        store = await Store.open(store_path())
        conversation, engine = Conversation(store, "guide"), FakeEngine([EngineCrashed("It died.")], ["Now."])
        with pytest.raises(EngineCrashed):
            async for _ in send(conversation, engine, "Go."):
                pass
        conversation.regenerate()
        async for _ in conversation.answer(engine):
            pass
        assert [one.n_messages for one in await store.listed(5)] == [2]
        await store.close()

    asyncio.run(talk())


@pytest.mark.slow
def test_a_conversation_that_is_being_answered_is_not_removed(script):
    path = script(reply="word " * 2000, token_ms=5)
    other = subprocess.Popen(
        [*EDGECHAT, "run", str(path), "Hi"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.read(10)
        (found,) = json.loads(edgechat("chats", "--json").stdout)
        assert "is generating an answer" in complaint(edgechat("chats", "rm", found["id"], "--yes"))
    finally:
        other.kill()
        other.communicate()
    assert edgechat("chats", "rm", found["id"], "--yes").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chat",), "`edgechat chats`"),
        (("chast",), "Did you mean 'chats'"),
        (("chats", "remove", "ab12", "cd34"), "Did you mean: edgechat chats rm ab12 cd34"),
        (("chats", "delete", "ab12"), "Did you mean: edgechat chats rm ab12"),
        (("chats", "list"), "Did you mean: edgechat chats\n"),
        (("chats", "1a2b3c4d"), "Did you mean: edgechat chats show 1a2b3c4d"),
        (("chats", "shwo", "ab12"), "Did you mean: edgechat chats show ab12"),
        (("chats", "remvoe", "ab12"), "Did you mean: edgechat chats rm ab12"),
        (("chats", "zzz"), "chats --help"),
        (("chats", "show"), "Missing argument"),
        (("chats", "rm"), "Missing argument"),
        (("chats", "--json", "show", "ab"), "edgechat chats show ID --json"),
        (("chats", "--limit", "0"), "--limit"),
        (("chats", "undelete", "ab12"), "Did you mean: edgechat chats restore ab12"),
        (("chats", "trash"), "Did you mean: edgechat chats --trash"),
    ],
)
def test_usage_errors(words, said):
    run = edgechat(*words)
    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


@needs_tmux
def test_removing_is_asked_first(tmp_path):
    chat, other = hold("First"), hold("Second")
    with Terminal(tmp_path, home=tmp_path / "home") as terminal:
        terminal.run([*EDGECHAT, "chats", "rm", chat])
        terminal.until("Delete it? [y/N]")
        terminal.press("Enter")
        terminal.until("left with 1")
        assert "Nothing was deleted." in terminal.screen
        terminal.run([*EDGECHAT, "chats", "rm", "--now", other, other, chat])
        terminal.until("Delete these 2 permanently? [y/N]")
        terminal.press("C-c")
        terminal.until("left with 130")
        assert terminal.screen.count("\nNothing was deleted.") == 2
        assert len(json.loads(edgechat("chats", "--json").stdout)) == 2
        terminal.run([*EDGECHAT, "chats", "rm", chat, other])
        terminal.ask("y")
        terminal.until("left with 0")
    assert len(json.loads(edgechat("chats", "--trash", "--json").stdout)) == 2
    assert json.loads(edgechat("chats", "--json").stdout) == []
