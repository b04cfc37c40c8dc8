"""The plain mode, for screen readers, and the commands that can be typed in a conversation."""

import asyncio
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgechat import settings
from edgechat.chat.commands import commands_of
from edgechat.chat.model_choice import remember, remembered
from edgechat.chat.storage.store import Store, store_path
from edgechat.cli.chat import screen_reader
from edgechat.cli.chat.screen_reader import SpokenAnswer, SpokenStatus
from edgechat.engine.types import Delta, Finished, Timings, Usage
from tests import scripted
from tests.cli.running import EDGECHAT, edgechat
from tests.terminal import Terminal, needs_tmux

pytestmark = pytest.mark.slow

Script = Callable[..., Path]
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}{% endif %}"
    "{# </think> #}"
)


def held(path, *lines, words=()):
    """Hold a conversation with lines from a pipe; it must end well and without escape sequences."""
    run = edgechat("--screen-reader", "--model", path, *words, piped="".join(f"{line}\n" for line in lines))
    assert run.returncode == 0, run
    assert "Traceback" not in run.stderr
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", run.stdout + run.stderr)
    return run


def sentences(run):
    """Return what was said beside the answers, without the prompts and the template's note."""
    lines = [line.removeprefix("You: ").removeprefix("You: ") for line in run.stderr.splitlines()]
    return [line for line in lines if line and not line.startswith("note:")]


def open_store(work):
    async def done():
        store = await Store.open(store_path())
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(done())


def test_it_says_in_sentences_what_happens(script):
    path = script(reply="<think>hm</think>One. Two\nthree", template=THINKING)
    run = held(path, "Hello")
    assert run.stdout == "One. Two\nthree\n"
    loading, ready, thinking, answer, end = sentences(run)
    assert loading == "Loading model."
    assert ready.startswith("model is ready.")
    assert "/help" in ready
    assert (thinking, answer) == ("Thinking.", "Answer:")
    assert re.fullmatch(r"End of answer, \d+ tokens in (less than a second|1 second|\d+ seconds)\.", end)


def test_the_conversation_is_kept_and_listed(script):
    path = script()
    held(path, "First question", "Second question")
    assert "4" in edgechat("chats").stdout
    run = held(path, "/chats", "/search second", "/new", "Another", "/chats")
    told = sentences(run)
    assert re.search(r"^[0-9a-f]{8}: First question, 4 messages, just now\.$", run.stderr, re.M), run.stderr
    assert any(re.fullmatch(r"[0-9a-f]{8}: First question, you: Second question", line) for line in told)
    assert "A new conversation." in told
    assert any(line.endswith(": Another, 2 messages, just now.") for line in told)


def test_a_conversation_is_opened_and_goes_on(script):
    path = script(reply="Hello.", rules=[{"when": "And", "reply": "More."}])
    held(path, "First")
    (chat,) = open_store(lambda store: store.chats())
    run = held(path, f"/open {chat.id[:6]}", "And then?", "/open nosuch", "/open")
    told = sentences(run)
    assert "Continuing: First (2 messages)." in told
    assert "You said: First" in told
    assert "The answer was: Hello." in told
    assert "error: There is no conversation 'nosuch'." in told
    assert "error: /open needs an argument: /open ID" in told
    _, turns = open_store(lambda store: store.load(chat.id))
    assert [turn.content for turn in turns] == ["First", "Hello.", "And then?", "More."]


def test_another_model_answers(script, tmp_path):
    other = scripted.write(tmp_path / "other.gguf", reply="From the other.")
    run = held(script(reply="From the first."), "a", "/model nosuch", "b", f"/model {other}", "c", "/model")
    assert run.stdout == "From the first.\nFrom the first.\nFrom the other.\n"
    told = sentences(run)
    assert "Loading other." in told
    assert "Switched to other." in told
    assert any(line.startswith("error: There is no file 'nosuch'") for line in told)
    assert told[-1] == "The model is other."
    assert open_store(remembered) == str(other)
    (chat,) = open_store(lambda store: store.chats())
    assert chat.model == str(other)


def test_help_lists_the_commands_and_a_mistyped_one_says_what_there_is(script):
    run = held(script(), "/help", "/hlep", "/xyz", "/new now", "/quit", "never asked")
    for command in commands_of("run"):
        assert f"{command.usage}: {command.description}.\n" in run.stderr
    assert (
        "No such command: /hlep.\n  Did you mean /help? /help lists the commands; //hlep sends it"
        in run.stderr
    )
    assert "No such command: /xyz.\n  /help lists the commands; //xyz sends it" in run.stderr
    assert "/new takes no argument.\n  //new now sends it as a question." in run.stderr
    assert run.stdout == ""


def test_a_path_is_a_question(script):
    run = held(script(rules=[{"when": "/usr/bin", "reply": "A folder."}]), "/usr/bin is what?")
    assert run.stdout == "A folder.\n"


def test_a_question_that_begins_like_a_command_is_sent_with_two_strokes(script):
    run = held(script(), "//new to this", " /help", "/new to this")
    assert open_store(lambda store: store.recent_questions()) == [" /help", "/new to this"]
    assert "//new to this sends it as a question." in run.stderr


def test_which_model_it_begins_with(script, tmp_path):
    first, second = script(reply="first"), scripted.write(tmp_path / "second.gguf", reply="second")
    open_store(lambda store: remember(store, str(second)))
    assert edgechat("--screen-reader", piped="Hi\n").stdout == "second\n"
    settings.change("model", str(first))
    assert edgechat("--screen-reader", piped="Hi\n").stdout == "first\n"
    settings.change("model", None)
    first.unlink()  # the one used last
    run = edgechat("--screen-reader", piped="")
    assert run.returncode == 0
    assert "was not found; guide is used instead." in run.stderr
    assert "Loading guide." in run.stderr
    settings.change("model", "gone.gguf")
    run = edgechat("--screen-reader", piped="")
    assert run.stderr.count("gone.gguf was not found; guide is used instead.") == 1
    assert "Loading guide." in run.stderr
    assert edgechat("--screen-reader", "--model", "gone.gguf", piped="").returncode == 1


def test_the_setting_asks_for_it_too(script):
    settings.change("screen_reader", True)
    path = script(reply="Hello.")
    run = edgechat("--model", path, piped="Hi\n")
    assert (run.returncode, run.stdout) == (0, "Hello.\n")
    assert "Answer:" in run.stderr
    alone = edgechat("run", path, "Hi")
    assert alone.stdout == "Hello.\n"
    assert "End of answer, 6 tokens in" in alone.stderr


def test_it_is_an_option_of_run(script):
    run = edgechat("run", script(reply="Hello."), "Hi", "--screen-reader", "--max-tokens", "3")
    assert run.stdout == "Hel\n"
    assert "End of answer, 3 tokens in less than a second. Stopped at --max-tokens." in run.stderr
    wrong = edgechat("--screen-reader", "run", "guide", "Hi")
    assert (wrong.returncode, "edgechat run MODEL --screen-reader" in wrong.stderr) == (2, True)


def test_an_error_ends_an_answer_and_not_the_conversation(script):
    path = script(reply="Still here.", rules=[{"when": "die", "reply": "so far so good", "crash_after": 6}])
    run = edgechat("--screen-reader", "--model", path, piped="die\nagain\n")
    assert run.stdout == "so far\nStill here.\n"
    told = sentences(run)
    assert "The answer stopped here." in told
    assert any(line.startswith("error: ") and "SIGKILL" in line for line in told)


def test_the_settings_give_new_chats_a_system_prompt(script):
    settings.change("system", "Be brief.")
    path = script()
    edgechat("run", path, "Hi")
    edgechat("run", path, "And", "--continue")
    edgechat("run", path, "Hi", "--system", "Be long.")
    edgechat("run", path, "Hi", "--system", "")
    held(path, "Hi", "/new", "Hello")

    async def systems(store):
        loaded = [await store.load(one.id) for one in await store.chats()]
        return [turns[0].content if turns[0].role == "system" else "" for _, turns in loaded][::-1]

    assert open_store(systems) == ["Be brief.", "Be long.", "", "Be brief.", "Be brief."]


def test_the_settings_switch_thinking_where_a_model_can(script):
    reply, words = "<think>hm</think>Hello.", ("Hi", "--screen-reader")
    settings.change("think", True)
    assert "Thinking." in edgechat("run", script(reply=reply, template=THINKING), *words).stderr
    assert edgechat("run", script(reply="Hello."), *words).returncode == 0


# How it sounds: an answer in sentences, and a word where there was silence for long.


def spoken_answer(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    return SpokenAnswer(SpokenStatus(err), dropped=0, has_system=False), out, err


def test_an_answer_is_written_in_sentences(monkeypatch):
    answer, out, _ = spoken_answer(monkeypatch)
    seen = []
    for text in ("It is", " 3", ".", "5 metres", ".", " And", ' "so."', " I", "\nt", "\x1b[2J"):
        answer.take(Delta("", text, False, 1))
        seen.append(out.getvalue())
    assert seen[3] == ""
    assert seen[5] == "It is 3.5 metres."
    assert seen[7] == 'It is 3.5 metres. And "so."'
    assert seen[8] == 'It is 3.5 metres. And "so." I\n'
    answer.take(Delta("", "x" * 500, False, 1))
    assert out.getvalue().endswith("t[2J" + "x" * 500)


def test_long_waits_are_told_of_now_and_then(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(screen_reader.time, "monotonic", lambda: now[0])
    err = io.StringIO()
    status = SpokenStatus(err)
    status.say("Loading big.")
    for _ in range(24):
        now[0] += 0.5
        status.show(f"loading big {now[0] - 100:.0f}%")
    assert err.getvalue() == "Loading big.\nLoading big 5%.\nLoading big 10%.\n"


@pytest.mark.parametrize(
    ("took", "n", "reason", "said"),
    [
        (0.2, 1, "stop", "End of answer, 1 token in less than a second."),
        (1.2, 5, "stop", "End of answer, 5 tokens in 1 second."),
        (4.0, 120, "cancelled", "End of answer, 120 tokens in 4 seconds. Stopped."),
        (150.0, 9, "context", "End of answer, 9 tokens in 2 minutes. The context is full."),
    ],
)
def test_how_an_answer_ends(monkeypatch, took, n, reason, said):
    now = [0.0]
    monkeypatch.setattr(screen_reader.time, "monotonic", lambda: now[0])
    answer, _, err = spoken_answer(monkeypatch)
    now[0] = took
    finished = Finished("", reason, Usage(5, 0, n, 0), Timings(1.0, 1.0, 1.0))
    answer._print_timings(finished, 4096)
    assert err.getvalue() == f"{said}\n"


@needs_tmux
def test_in_a_terminal_nothing_moves(script, tmp_path):
    path = script(rules=[{"when": "slow", "reply": "ab. " * 500}], token_ms=5)
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "--screen-reader", "--model", str(path)])
        terminal.until("You:")
        before = len(terminal.raw)
        terminal.ask("first")
        terminal.until("I am a script.")
        terminal.until("End of answer")
        terminal.ask("slow")
        terminal.until("ab. ab. ab.")
        terminal.press("C-c")
        terminal.until("Stopped.")
        after = len(terminal.raw)
        terminal.press("C-d")
        terminal.until("left with 0")
        written = terminal.raw[before:after]
        assert b"\x1b" not in written
        assert not re.search(rb"\r(?!\n)", written.replace(b"\r\r\n", b"\r\n"))


@needs_tmux
def test_run_takes_the_same_commands(script, tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(script())])
        terminal.until(">>>")
        terminal.ask("/help")
        terminal.until("/search [WORDS]: Search all conversations.")
        terminal.ask("/quit")
        terminal.until("left with 0")
