"""`edgechat chats`: the list, and what reads and deletes conversations."""

import asyncio
import json
import sqlite3
import stat
import subprocess
import time

import pytest

from edgechat.base.errors import EngineCrashed
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Chat, Turn
from edgechat.chat.storage.store import Store, store_path
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.fakes import FakeEngine, thought
from tests.terminal import Terminal, needs_tmux


def hold(*questions, engine=None, model="guide", system=None):
    """Leave a chat in the store; return its id."""

    async def talk():
        store = await Store.open(store_path())
        conversation = Conversation(store, model, system=system)
        for question in questions:
            try:
                async for _ in conversation.send(engine or FakeEngine(), question):
                    pass
            except EngineCrashed:
                pass
        await store.close()
        return conversation.chat.id

    return asyncio.run(talk())


def put(*ids):
    """Leave chats with these ids, the first as the one that was used last."""

    async def write():
        store = await Store.open(store_path())
        for name in reversed(ids):
            chat = Chat(id=name, title=name, model="m", date="d", created_at=1.0, updated_at=1.0)
            turn = Turn(id=f"t{name}", chat_id=name, role="user", content="Hi", created_at=1.0)
            await store.add_turn(turn, chat=chat)
        await store.close()

    asyncio.run(write())


def state_of(chat, home):
    path = home / "cache" / "states" / f"{chat}.state"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"state")
    return path


def rows(*words):
    run = edgechat("chats", *words)
    assert run.returncode == 0, run
    return [line.split("  ") for line in run.stdout.splitlines()]


def test_no_conversations_yet():
    run = edgechat("chats")
    assert run.returncode == 0
    assert "no conversations yet" in run.stdout
    assert "edgechat run guide" in run.stdout
    assert json.loads(edgechat("chats", "--json").stdout) == []


def test_the_latest_comes_first():
    crashing = FakeEngine(["So", EngineCrashed("It died.")], ["Here."])
    first = hold("One", "Two", engine=crashing, system="Be brief.", model="/models/tiny.gguf")
    second = hold("A " + "long " * 40)
    shown = edgechat("chats").stdout.splitlines()
    assert shown[0].split() == ["ID", "TITLE", "MODEL", "MESSAGES", "LAST", "USED"]
    assert shown[1].startswith(f"{second[:8]}  A long long")
    assert "…  guide" in shown[1]
    assert shown[2].split() == [first[:8], "One", "tiny.gguf", "4", "just", "now"]
    assert len(shown) == 3
    found = json.loads(edgechat("chats", "--json").stdout)
    assert [(one["id"], one["n_messages"], one["front"]) for one in found] == [
        (second, 2, "app"),
        (first, 4, "app"),
    ]
    assert time.time() - found[0]["updated_at"] < 60


def test_tries_at_one_reply_count_once():
    async def talk():
        store = await Store.open(store_path())
        conversation, engine = Conversation(store, "guide"), FakeEngine([EngineCrashed("It died.")], ["Now."])
        with pytest.raises(EngineCrashed):
            async for _ in conversation.send(engine, "Go."):
                pass
        conversation.regenerate()
        async for _ in conversation.answer(engine):
            pass
        assert [one.n_messages for one in await store.listed(5)] == [2]
        await store.close()

    asyncio.run(talk())


def test_a_limit_says_that_there_are_more():
    put("aaaaaaaa1", "bbbbbbbb1", "cccccccc1")
    run = edgechat("chats", "--limit", "2")
    assert [line.split()[0] for line in run.stdout.splitlines()] == ["ID", "aaaaaaaa", "bbbbbbbb"]
    assert "To list more: edgechat chats --limit 10" in run.stderr
    assert edgechat("chats", "--limit", "3").stderr == ""


def test_ids_are_shown_as_long_as_they_have_to_be():
    put("0123456789ab", "0123456789cd", "01234567zz", "ffff0000ffff")
    shown = [row[0] for row in rows()[1:]]
    assert shown == ["0123456789a", "0123456789c", "01234567z", "ffff0000"]
    for name in shown:
        assert edgechat("chats", "show", name).returncode == 0


def test_a_conversation_is_shown():
    engine = FakeEngine([thought("Hm."), "**Hello**.\n"], ["So", EngineCrashed("It died.")])
    chat = hold("Hi", "And?", engine=engine, system="Be brief.")
    run = edgechat("chats", "show", chat[:5])
    head, *rest = run.stdout.rstrip("\n").split("\n\n")
    assert head == "# Hi"
    assert rest[0].startswith(f"{chat} · started on ")
    assert rest[0].endswith(" · 4 messages · last model: guide")
    assert rest[1:] == [
        *("## System prompt", "Be brief."),
        *("## You", "Hi", "## Answer", "**Hello**."),
        *("## You", "And?", "## Answer", "So", "(interrupted here)"),
    ]
    found = json.loads(edgechat("chats", "show", chat[:5], "--json").stdout)
    assert (found["id"], found["n_messages"]) == (chat, 4)
    assert [
        (turn["role"], turn["content"], turn["thinking"], turn["state"]) for turn in found["messages"]
    ] == [
        ("system", "Be brief.", "", "complete"),
        ("user", "Hi", "", "complete"),
        ("assistant", "**Hello**.\n", "Hm.", "complete"),
        ("user", "And?", "", "complete"),
        ("assistant", "So", "", "interrupted"),
    ]
    assert found["messages"][2]["figures"]["usage"]["completion_tokens"] == 2
    assert found["messages"][4]["error"]["kind"] == "EngineCrashed"


def test_nothing_of_a_stranger_moves_the_cursor():
    evil = "a\x1b]52;c;aGk=\x07b\x9b31mc\x00"
    chat = hold(evil, engine=FakeEngine([evil]), model=evil, system=evil)
    outputs = [edgechat("chats"), edgechat("chats", "--json"), edgechat("chats", "show", chat)]
    outputs += [edgechat("chats", "search", "aGk"), edgechat("chats", "export", chat, "--json")]
    outputs += [edgechat("chats", "show", chat, "--json"), edgechat("chats", "rm", chat, "--yes")]
    for run in outputs:
        assert run.returncode == 0
        said = run.stdout + run.stderr
        assert not any((ord(one) < 32 and one != "\n") or 127 <= ord(one) < 160 for one in said)


@pytest.mark.parametrize("words", [("chats", "show"), ("chats", "rm"), ("run", "guide", "Hi", "--chat")])
def test_an_id_of_bytes_that_are_no_text(words):
    hold("Hi")
    done = edgechat(*words, "\udcff")
    assert done.returncode == 1
    assert "There is no conversation" in done.stderr


def test_removing_at_once_takes_the_words_and_the_state(home):
    kept, gone, other = hold("Stays"), hold("xyzzy, a secret"), hold("Goes too")
    states = {name: state_of(name, home) for name in (kept, gone)}
    assert edgechat("chats", "rm", other, "--yes").returncode == 0
    run = edgechat("chats", "rm", "--now", gone, other[:9], gone[:10], "--yes")
    assert run.returncode == 0
    assert run.stdout.splitlines() == [
        f"{gone[:8]}  xyzzy, a secret (2 messages)",
        f"{other[:8]}  Goes too (2 messages)",
        "Deleted permanently.",
    ]
    assert [row[1] for row in rows()[1:]] == ["Stays"]
    assert json.loads(edgechat("chats", "--trash", "--json").stdout) == []
    assert (states[kept].exists(), states[gone].exists()) == (True, False)
    assert not [file for file in (home / "data").glob("chats.db*") if b"xyzzy" in file.read_bytes()]


@pytest.mark.slow
def test_what_is_removed_is_in_the_trash_and_comes_back(home):
    first, second = hold("A pelican"), hold("A heron", "And?")
    assert edgechat("chats", "--trash").stdout == (
        "The trash is empty. Deleted conversations stay there for 30 days.\n"
    )
    state = state_of(second, home)
    run = edgechat("chats", "rm", second[:8], "--yes")
    assert run.stdout.splitlines() == [
        f"{second[:8]}  A heron (4 messages)",
        f"Moved to the trash for 30 days. To undo: edgechat chats restore {second[:8]}",
    ]
    assert not state.exists()
    assert edgechat("chats", "search", "heron").returncode == 1
    for words in (("show",), ("pin",), ("export",), ("rm", "--yes")):
        said = complaint(edgechat("chats", *words, second[:8]))
        assert f"edgechat chats restore {second[:8]}" in said
    edgechat("chats", "rm", first, "--yes")
    assert edgechat("chats").stdout.startswith("There are no conversations yet.")
    shown = edgechat("chats", "--trash", "--limit", "1")
    assert [line.split("  ")[0].split()[0] for line in shown.stdout.splitlines()] == ["ID", first[:8]]
    assert shown.stdout.splitlines()[0].endswith("DELETED")
    assert "To list more: edgechat chats --trash --limit 5" in shown.stderr
    found = json.loads(edgechat("chats", "--trash", "--json").stdout)
    assert [(one["id"], one["n_messages"], time.time() - one["trashed_at"] < 60) for one in found] == [
        (first, 2, True),
        (second, 4, True),
    ]
    run = edgechat("chats", "restore", second[:8], first, second)
    assert run.stdout.splitlines() == [
        f"Restored: {second[:8]}  A heron",
        f"Restored: {first[:8]}  A pelican",
    ]
    assert [row[1] for row in rows()[1:]] == ["A heron", "A pelican"]
    assert "in the trash" in complaint(edgechat("chats", "restore", first))


@pytest.mark.slow
def test_what_cannot_be_removed_leaves_all_as_it_was():
    chat = hold("Stays")
    assert "edgechat chats" in complaint(edgechat("chats", "rm", chat, "nosuch", "--yes"))
    run = edgechat("chats", "rm", chat)
    assert run.returncode == 2
    assert "Add --yes" in run.stderr
    other = sqlite3.connect(store_path(), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    run = edgechat("chats", "rm", chat, "--yes")
    assert (run.returncode, "Another program has locked" in run.stderr) == (1, True)
    other.close()
    assert len(rows()) == 2


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


def test_what_was_said_is_found():
    chat = hold("Which bird is it?", "And\x1b now?", engine=FakeEngine(["A brown Pelican, I think."]))
    hold("Something else")
    run = edgechat("chats", "search", "brown", "pel")
    assert run.returncode == 0
    hits = [lines.splitlines() for lines in run.stdout.split("\n\n")]
    assert len(hits) == 2
    assert hits[0][0].startswith(f"{chat[:8]}  Which bird is it? · answer · 2")
    assert hits[0][1] == "  A brown Pelican, I think."
    found = json.loads(edgechat("chats", "search", "pelican", "--limit", "1", "--json").stdout)
    assert [(one["chat"], one["role"], one["marks"]) for one in found] == [(chat, "assistant", [[8, 15]])]
    run = edgechat("chats", "search", "heron", '"')
    assert (run.returncode, "No message contains" in run.stdout) == (1, True)
    assert json.loads(edgechat("chats", "search", "heron", "--json").stdout) == []


def test_a_title_that_has_the_words_is_found():
    chat = hold("Hi")
    edgechat("chats", "rename", chat, "My pelican\x1b")
    assert edgechat("chats", "search", "pelican").stdout.splitlines()[1] == "  My pelican"
    assert json.loads(edgechat("chats", "search", "pelican", "--json").stdout)[0]["turn"] is None


@pytest.mark.slow
def test_a_conversation_is_written_and_read_again(tmp_path):
    chat = hold("Hi", "And?", engine=FakeEngine([thought("Hm."), "**Hello**.\n"]))
    shown = edgechat("chats", "show", chat).stdout
    assert edgechat("chats", "export", chat).stdout == shown
    for file, options in ((tmp_path / "a.md", ()), (tmp_path / "a.json", ("--json",))):
        run = edgechat("chats", "export", chat[:6], file, *options)
        assert (run.returncode, run.stdout) == (0, f"Written to {file}.\n")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "already" in complaint(edgechat("chats", "export", chat, file))
        file.chmod(0o644)
        assert edgechat("chats", "export", chat, file, *options, "--force").returncode == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (tmp_path / "a.md").read_text() == shown
    found = json.loads(edgechat("chats", "import", tmp_path / "a.json", "--json").stdout)
    assert (found["title"], found["n_messages"], found["id"] != chat) == ("Hi", 4, True)
    piped = edgechat("chats", "import", "-", piped=(tmp_path / "a.json").read_text())
    assert piped.returncode == 0
    new = piped.stdout.split()[0]
    lines = edgechat("chats", "show", new).stdout.splitlines()
    assert lines[4:] == shown.splitlines()[4:]
    assert len(rows()) == 4


def test_what_cannot_be_read_or_written_is_told(tmp_path):
    chat = hold("Hi")
    assert "cannot be written" in complaint(edgechat("chats", "export", chat, tmp_path / "no" / "a.md"))
    assert "cannot be read" in complaint(edgechat("chats", "import", tmp_path / "nosuch"))
    assert "cannot be read" in complaint(edgechat("chats", "import", tmp_path))
    for name in ("~nobody-is-called-so/a.md", "x" * 300):
        assert "cannot be written" in complaint(edgechat("chats", "export", chat, name))
        assert "cannot be read" in complaint(edgechat("chats", "import", name))
    for ending, options in ((".md", ()), (".json", ("--json",))):
        run = edgechat("chats", "export", chat, tmp_path, *options)
        (written,) = tmp_path.glob(f"*{ending}")
        assert run.stdout == f"Written to {written}.\n"
    file = tmp_path / "a.json"
    file.write_text('[{"role": "tool", "content": "x"}]')
    assert "message 1 is no text that answers a call" in complaint(edgechat("chats", "import", file))
    assert len(rows()) == 2


def test_renaming_and_pinning():
    chat = hold("First words")
    assert edgechat("chats", "rename", chat[:6], "Another").stdout == "Renamed to 'Another'.\n"
    assert edgechat("chats", "pin", chat).stdout == "Pinned: Another\n"
    (found,) = json.loads(edgechat("chats", "--json").stdout)
    assert (found["title"], found["pinned"]) == ("Another", True)
    assert edgechat("chats", "rename", chat, "").stdout == "Renamed to 'First words'.\n"
    assert edgechat("chats", "pin", chat, "--off").returncode == 0
    assert json.loads(edgechat("chats", "--json").stdout)[0]["pinned"] is False
    for words in (("rename", "nosuch", "x"), ("pin", "nosuch"), ("export", "nosuch")):
        assert "There is no conversation" in complaint(edgechat("chats", *words))


def test_a_store_that_is_damaged(home):
    store_path().write_bytes(b"this is no database" * 100)
    for words in ((), ("show", "ab"), ("rm", "ab", "--yes"), ("search", "ab"), ("pin", "ab")):
        assert "damaged" in complaint(edgechat("chats", *words))


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
