"""What `edgechat run` keeps of a conversation, and how it goes on with it."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import CommandLineOptions
from edgechat.chat.storage.store import Store, store_path
from edgechat.cli.chat.conversation import ConversationChoice, RunOptions
from edgechat.cli.chat.run import run_with
from edgechat.engine.types import CachePolicy, Dropped
from edgechat.guide import engine as guide
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.fakes import FakeEngine, send
from tests.kit import tiny
from tests.terminal import Terminal, needs_tmux

pytestmark = pytest.mark.slow

Script = Callable[..., Path]
NOTE = "note: the model has no chat template; ChatML is used.\n"


def stored():
    """Return every chat with its turns, the latest first."""

    async def read():
        store = await Store.open(store_path())
        found = [await store.load(one.id) for one in await store.chats()]
        await store.close()
        return found

    return asyncio.run(read())


def said(turns):
    return [(turn.role, turn.content, turn.state) for turn in turns]


def held_in_the_app(text="In the app"):
    """Leave a chat of the app; return its id."""

    async def hold():
        store = await Store.open(store_path())
        conversation = Conversation(store, "guide")
        async for _ in send(conversation, FakeEngine(), text):
            pass
        await store.close()
        return conversation.chat.id

    return asyncio.run(hold())


def test_an_exchange_is_kept_with_its_system_prompt(script):
    path = script(reply="Hello.")
    found = json.loads(edgechat("run", path, "Hi\nyou", "--system", "Be brief.", "--json").stdout)
    ((chat, turns),) = stored()
    assert said(turns) == [
        ("system", "Be brief.", "complete"),
        ("user", "Hi\nyou", "complete"),
        ("assistant", "Hello.", "complete"),
    ]
    assert (chat.id, chat.title, chat.model, chat.front) == (found["chat"], "Hi", str(path), "run")
    assert turns[-1].figures is not None
    assert turns[-1].figures.usage is not None
    assert msgspec.to_builtins(turns[-1].figures.usage) == found["usage"]


def test_continue_goes_on_with_the_last_of_the_command_line(script):
    path = script(reply="Hello.", rules=[{"when": "And", "reply": "More."}])
    edgechat("run", path, "Other", "--system", "Be long.")
    first = json.loads(edgechat("run", path, "Hi", "--system", "Be brief.", "--json").stdout)
    held_in_the_app()
    second = json.loads(edgechat("run", path, "And?", "--continue", "--json").stdout)
    third = json.loads(edgechat("run", path, "And then?", "-c", "--json").stdout)
    assert first["chat"] == second["chat"] == third["chat"]
    sent = [found["usage"]["prompt_tokens"] for found in (first, second, third)]
    assert sent[0] + len("Hello.And?") < sent[1] < sent[2]
    assert [turn.content for turn in stored()[0][1]] == [
        "Be brief.",
        *("Hi", "Hello.", "And?", "More.", "And then?", "More."),
    ]


def test_any_conversation_goes_on_by_the_beginning_of_its_id(script):
    chat = held_in_the_app()
    edgechat("run", script(), "Another")
    assert edgechat("run", script(), "And?", "--chat", chat[:6].upper()).returncode == 0
    found, turns = stored()[0]
    assert (found.id, found.model, found.front) == (chat, str(script()), "run")
    assert [turn.content for turn in turns] == ["In the app", "Hello there.", "And?", "I am a script."]
    assert edgechat("run", script(), "And now?", "-c").returncode == 0
    assert len(stored()[0][1]) == 6


def test_conversations_that_cannot_go_on(script):
    path = script()
    assert "To start one: edgechat run guide" in complaint(edgechat("run", path, "Hi", "-c"))
    edgechat("run", path, "Hi")
    with sqlite3.connect(store_path()) as db:
        columns = "title, model, date, created_at, updated_at, front"
        for name, when in (("beef1", 2), ("beef2", 1)):
            db.execute(
                f"INSERT INTO conversations (id, {columns}) VALUES (?, 'Hi', 'm', 'd', 1, ?, 'app')",
                (name, when),
            )
    for name, expected in (
        ("nosuch", "There is no conversation 'nosuch'."),
        ("", "There is no conversation ''."),
        ("%", "There is no conversation '%'."),
        ("beef", "2 conversations have ids that begin with 'beef': beef1 (Hi), beef2 (Hi)."),
    ):
        told = complaint(edgechat("run", path, "Hi", "--chat", name))
        assert expected in told
        assert told.endswith("edgechat chats\n")


def test_a_system_prompt_belongs_to_the_beginning(script):
    path = script()
    edgechat("run", path, "Hi")
    assert "was started without" in complaint(edgechat("run", path, "Hi", "-c", "--system", "Be brief."))
    edgechat("run", path, "Hi", "--system", "Be brief.")
    assert "already has a system prompt" in complaint(edgechat("run", path, "Hi", "-c", "--system", "No."))


def test_a_conversation_that_another_edgechat_writes_in_waits(script):
    path = script(reply="word " * 2000, token_ms=5)
    other = subprocess.Popen(
        [*EDGECHAT, "run", str(path), "Hi"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.read(10)
        assert "Another edgechat is generating" in complaint(edgechat("run", path, "Hi", "-c"))
    finally:
        other.kill()
        other.communicate()
    quick = script(reply="Here.")
    assert edgechat("run", quick, "And?", "-c").stdout == "Here.\n"
    assert [turn.state for turn in stored()[0][1]] == ["complete", "interrupted", "complete", "complete"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-c", "--chat", "ab"), "cannot be used together with --chat"),
        (("-c", "--no-store"), "--no-store"),
        (("--chat", "ab", "--no-store"), "--no-store"),
        (("--overflow", "wndow"), "'window', 'error'"),
    ],
)
def test_options_that_cannot_be(words, told):
    run = edgechat("run", "guide", "hi", *words)
    assert run.returncode == 2
    assert told in run.stderr


def test_no_store_leaves_no_trace(script, home):
    path = script(rules=[{"when": "die", "reply": "so far so good", "crash_after": 6}])
    found = json.loads(edgechat("run", path, "xyzzy", "--no-store", "--json", "--system", "Hm.").stdout)
    assert (found["text"], found["chat"]) == ("I am a script.", None)
    assert edgechat("run", path, "xyzzy, die", "--no-store").returncode == 3
    files = [file for file in home.rglob("*") if file.is_file()]
    assert not [file for file in files if b"xyzzy" in file.read_bytes()]
    assert not [file for file in files if "chats.db" in file.name or file.suffix == ".state"]
    assert not (home / "cache" / "states").exists()


def test_a_store_that_cannot_be_written_keeps_nothing(home):
    home.mkdir()
    (home / "data").write_text("in the way of the folder")
    run = edgechat("--screen-reader", "--model", tiny("dense"), piped="xyzzy\n/new\nxyzzy\n")
    assert run.returncode == 0, run
    assert run.stderr.count("This conversation will be lost when edgechat closes.") == 1
    assert run.stderr.count("Answer:") == 2
    assert not [file for file in home.rglob("*") if file.is_file() and b"xyzzy" in file.read_bytes()]
    assert not list(home.rglob("*.state"))
    assert "cannot create its folder" in complaint(edgechat("run", "guide", "And then?", "-c"))


def test_a_store_that_is_locked_or_damaged_names_the_way_out(script, home):
    path = script(reply="Hello.")
    edgechat("run", path, "Hi")
    other = sqlite3.connect(store_path(), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with ThreadPoolExecutor() as pool:  # each waits for as long as it may
        runs = [pool.submit(edgechat, "run", path, "Hi", *words) for words in ((), ("-c",))]
    for run, words in zip([one.result() for one in runs], ((), ("-c",)), strict=True):
        run.stderr = run.stderr.removeprefix(NOTE)
        told = complaint(run)
        assert "Another program has locked" in told
        assert ("--no-store" in told) == (not words)
    other.close()
    for file in (home / "data").glob("chats.db*"):
        file.write_bytes(b"this is no database" * 100)
    told = complaint(edgechat("run", path, "Hi")).splitlines()[1]
    assert told.startswith(
        "  With --no-store, nothing is stored on disk. "
    )  # no option of a command before it
    assert edgechat("run", path, "Hi", "--no-store").stdout == "Hello.\n"


def test_a_worker_killed_in_mid_answer_and_then_it_goes_on(script):
    path = script(reply="I was.", rules=[{"when": "die", "reply": "so far so good", "crash_after": 6}])
    assert edgechat("run", path, "die").stdout == "so far\n"
    assert edgechat("run", path, "And?", "-c").stdout == "I was.\n"
    ((_, turns),) = stored()
    assert said(turns) == [
        ("user", "die", "complete"),
        ("assistant", "so far", "interrupted"),
        ("user", "And?", "complete"),
        ("assistant", "I was.", "complete"),
    ]


@pytest.mark.parametrize("names", [["SIGINT"], ["SIGTERM", "SIGHUP"], ["SIGHUP", "SIGHUP"]], ids="-".join)
def test_an_answer_that_is_cut_short_is_kept_as_far_as_it_came(script, names):
    path = script(reply="word " * 2000, token_ms=2)
    run = subprocess.Popen(
        [*EDGECHAT, "run", str(path), "Hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # communicate() would not see what a buffer has read ahead
    )
    assert run.stdout is not None
    begun = run.stdout.read(50).decode()
    for name in names:
        run.send_signal(signal.Signals[name])
        time.sleep(0.05)
    rest, errors = run.communicate(timeout=20)
    assert (run.returncode, errors.decode()) == (128 + signal.Signals[names[0]], NOTE)
    ((_, (_, reply)),) = stored()
    assert reply.state == "stopped"
    assert reply.content.startswith(begun)
    assert reply.content == begun + rest.decode()


def test_a_reader_that_goes_away_leaves_what_came(script):
    path = script(reply="many words " * 2000, token_ms=0.1)
    words = " ".join([*EDGECHAT, "run", str(path), "hi"])
    subprocess.run(["sh", "-c", f"{words} </dev/null | head -c 10"], capture_output=True, check=True)
    ((_, (_, reply)),) = stored()
    assert reply.state == "interrupted"
    assert reply.content.startswith("many words")


def test_a_question_longer_than_the_context_leaves_no_chat(script):
    run = edgechat("run", script(), "word " * 2000, "--system", "Hm.", "--overflow", "error")
    assert run.returncode == 1
    assert "the context is" in run.stderr
    assert stored() == []


def test_the_model_that_was_forgotten(script):
    path = script()
    edgechat("run", path, "Hi")
    told = complaint(edgechat("run", "--continue", "And then?"))
    assert 'edgechat run MODEL "PROMPT" --continue' in told


# With an engine that replays a script of events: what the worker is asked for, and what it may answer.


class Replaying(FakeEngine):
    """Stands in for what `local_engine` returns."""

    made: Replaying
    script: tuple[Any, ...] = ("Hello.",)

    def __init__(self, plan, *, cache_policy, **_):
        super().__init__(self.script)
        self.plan, self.cache_policy = plan, cache_policy
        type(self).made = self


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(guide, "local_engine", Replaying)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    yield Replaying
    Replaying.script = ("Hello.",)


def ask(**options):
    run_with(RunOptions(model="guide", prompt="Hi", **options))
    return Replaying.made


def test_what_the_engine_is_told_of_a_kept_conversation(engine):
    first = ask(generation=CommandLineOptions(stop=("x",), max_tokens=5, think=False))
    second = ask(choice=ConversationChoice(last=True), generation=CommandLineOptions(overflow="error"))
    ((chat, _),) = stored()
    assert [made.left for made in (first, second)] == [[None], [None]]
    assert [made.closed for made in (first, second)] == [True, True]
    assert first.cache_policy == CachePolicy(settle=False)
    (request,) = first.requests
    assert (request.chat, request.date, request.overflow) == (chat.id, chat.date, "window")
    assert (request.stop, request.max_tokens, request.think) == (("x",), 5, False)
    assert [(one.chat, one.overflow, one.date) for one in second.requests] == [(chat.id, "error", chat.date)]


def test_the_settings_choose_the_overflow_and_the_cache_policy(engine, home):
    (home / "config").mkdir(parents=True)
    said = 'overflow = "error"\nsettle_on_battery = false\nstate_gib = 0.5\n'
    (home / "config" / "settings.toml").write_text(said)
    made = ask()
    assert made.cache_policy == CachePolicy(settle=False, settle_on_battery=False, disk_bytes=2**29)
    assert made.requests[0].overflow == "error"
    assert ask(generation=CommandLineOptions(overflow="window")).requests[0].overflow == "window"


def test_what_the_engine_is_told_of_one_that_is_not_kept(engine):
    made = ask(choice=ConversationChoice(keep=False))
    assert made.cache_policy == CachePolicy(settle=False, disk_bytes=0)
    assert made.left == []


def test_turns_that_are_not_sent_any_more_are_told_when_their_number_changes(engine, capsys):
    notes = []
    for turns, options in ((1, {}), (1, {}), (4, {}), (2, {"json": True}), (1, {"system": "Hm."})):
        engine.script = (Dropped("", turns), "Hello.")
        ask(choice=ConversationChoice(last=bool(notes) and "system" not in options), **options)
        notes.append([line for line in capsys.readouterr().err.splitlines() if "no longer sent" in line])
    full, gone = "note: the context is full:", "no longer sent to the model"
    assert notes == [
        [f"{full} 1 earlier question, with its answer, is {gone}."],
        [],
        [f"{full} 4 earlier questions, with their answers, are {gone}."],
        [f"{full} 2 earlier questions, with their answers, are {gone}."],
        [f"{full} 1 earlier question, with its answer, is {gone}; the system prompt stays."],
    ]


# In a terminal.


@needs_tmux
def test_a_conversation_line_by_line_goes_on(script, tmp_path):
    path = script(reply="I am.", rules=[{"when": "slow", "reply": "ab " * 500}], token_ms=3)
    edgechat("run", path, "first")
    with Terminal(tmp_path, home=tmp_path / "home") as terminal:
        terminal.run([*EDGECHAT, "run", str(path), "--continue"])
        terminal.until("Continuing: first (2 messages)")
        terminal.until(">>>")
        terminal.ask("slow")
        terminal.until("ab ab ab")
        terminal.press("C-c")
        terminal.until("stopped")
        terminal.ask("second")
        terminal.until("I am.")
        terminal.press("C-d")
        terminal.until("left with 0")
        assert "Traceback" not in terminal.screen
    ((_, turns),) = stored()
    assert [turn.state for turn in turns if turn.role == "assistant"] == ["complete", "stopped", "complete"]


@needs_tmux
def test_what_another_run_has_said_meanwhile_becomes_part_of_it(script, tmp_path):
    path = script(reply="I am.")
    edgechat("run", path, "first")
    with Terminal(tmp_path, home=tmp_path / "home") as terminal:
        terminal.run([*EDGECHAT, "run", str(path), "--continue"])
        terminal.until(">>>")
        assert edgechat("run", path, "elsewhere", "--continue").returncode == 0
        terminal.ask("second")
        terminal.until("note: another edgechat has added 2 messages to this conversation in the meantime.")
        terminal.until("I am.")
        terminal.press("C-d")
        terminal.until("left with 0")
    ((_, turns),) = stored()
    assert [turn.content for turn in turns if turn.role == "user"] == ["first", "elsewhere", "second"]


@needs_tmux
def test_a_question_too_long_lets_one_go_on(script, tmp_path):
    with Terminal(tmp_path, home=tmp_path / "home") as terminal:
        terminal.run([*EDGECHAT, "run", str(script()), "--ctx", "256", "--overflow", "error"])
        terminal.until(">>>")
        terminal.ask("word " * 100)
        terminal.until("error: ")
        terminal.ask("short")
        terminal.until("I am a script.")
        terminal.press("C-d")
        terminal.until("left with 0")
    ((chat, turns),) = stored()
    assert (chat.title, [turn.content for turn in turns]) == ("short", ["short", "I am a script."])


@needs_tmux
def test_the_model_that_was_forgotten_in_a_terminal(script, tmp_path):
    path = script()
    edgechat("run", path, "Hi")
    with Terminal(tmp_path, home=tmp_path / "home") as terminal:
        terminal.run([*EDGECHAT, "run", "--continue", "And then?"])
        terminal.until("left with 1")
        shown = "".join(terminal.screen.split("\n"))
        assert f"Did you mean: edgechat run {path} 'And then?' --continue" in shown
