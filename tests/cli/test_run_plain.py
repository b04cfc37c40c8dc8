"""The plain mode, for screen readers, and the commands that can be typed in a conversation."""

import asyncio
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgechat.chat.commands import commands_of
from edgechat.chat.storage.store import Store, store_path
from edgechat.cli.chat import answers
from edgechat.cli.chat.answers import SpokenAnswer, SpokenStatus
from edgechat.engine.types import Delta, Finished, Timings, Usage
from tests import scripted
from tests.cli.running import EDGECHAT, edgechat
from tests.cli.transcripts import transcript
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


def thinking(world, fields):
    """Write a model that thinks unless it is told not to."""
    scripted.write(world.folder / "model.gguf", **json.loads(fields), template=THINKING)


test_what_is_printed = transcript("spoken.txt", thinking)


def test_help_lists_every_command(script):
    run = held(script(), "/help")
    for command in commands_of("run"):
        assert f"{command.usage}: {command.description}.\n" in run.stderr


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
    monkeypatch.setattr(answers.time, "monotonic", lambda: now[0])
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
    monkeypatch.setattr(answers.time, "monotonic", lambda: now[0])
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
