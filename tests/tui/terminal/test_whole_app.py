"""The whole app in a terminal with the guide: first run, pull, chat, a crash, search, quit, resume."""

import fcntl
import os
import signal
import sqlite3
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.pulling import REPO
from tests.kit import tiny
from tests.terminal import Terminal, needs_tmux

pytestmark = needs_tmux

APP = [sys.executable, "-m", "edgechat"]


@pytest.fixture
def terminal(home, tmp_path, hub, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    with Terminal(tmp_path / "terminal", home=home) as opened:
        yield opened


def unread(pid: int) -> int:
    """Return how many bytes wait in the pipes of a process that is stopped; 1 where that cannot be seen."""
    if sys.platform != "linux":
        return 1
    waiting = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith("pipe:"):
            pipe = os.open(link, os.O_RDONLY | os.O_NONBLOCK)
            waiting += int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
            os.close(pipe)
    return waiting


def test_from_the_first_start_to_the_second(terminal, hf_cache):
    terminal.run(APP)
    terminal.until("Welcome to edgechat")
    terminal.until("Ask the guide")
    terminal.press("g")
    terminal.until("stays on this machine")
    terminal.until("of 2,048 tokens")

    terminal.ask(f"/pull {REPO}")
    terminal.until("A model is ready", 60)
    assert list(hf_cache.glob("*/snapshots/*/tiny-F32.gguf"))

    terminal.ask("What is a quant?")
    terminal.until("▌ What is a quant?")
    terminal.until("fewer bits")
    terminal.until("tok/s")

    (worker,) = terminal.processes("--child engine")
    worker.send_signal(signal.SIGSTOP)
    terminal.ask("What is a draft model?")
    terminal.until("Waiting for the model")
    terminal.until(lambda: unread(worker.pid) > 0)  # a worker that dies earlier is replaced without a word
    worker.kill()
    terminal.until("The engine process ended unexpectedly")
    assert "Traceback" not in terminal.screen
    terminal.press("C-r")
    terminal.until("speculative decoding")
    assert "The engine process ended unexpectedly" not in terminal.screen

    terminal.press("C-n")
    terminal.until(lambda: "▌ What is" not in terminal.screen)
    terminal.press("C-f")
    terminal.type("quant")
    terminal.until("What is a quant?")
    terminal.press("Enter")
    terminal.until("▌ What is a quant?")
    terminal.press("Escape")
    terminal.until("⏎ Send")
    terminal.type("half a question")
    terminal.until("half a question")
    terminal.press("C-q")
    terminal.until("left with 0")

    terminal.run(APP)
    terminal.until("stays on this machine")
    terminal.until("of 2,048 tokens")
    assert "Welcome to edgechat" not in terminal.screen
    terminal.press("C-b")
    terminal.until("Today")
    terminal.press("Enter")
    terminal.until("speculative decoding")  # its question is above the screen
    terminal.until("half a question")
    terminal.press("C-q")
    terminal.until("left with 0")
    with sqlite3.connect(terminal.home / "data" / "chats.db") as db:
        assert db.execute("SELECT count(*) FROM conversations").fetchone() == (1,)


@pytest.mark.usefixtures("measured")
def test_without_a_network_there_is_a_way_on(terminal, hub, monkeypatch):
    terminal.run(APP, variables="EDGECHAT_OFFLINE=1")
    terminal.until("Welcome to edgechat")
    terminal.until("Ask the guide")
    terminal.press("Escape")
    terminal.until("stays on this machine")
    terminal.ask(f"/pull {REPO}")
    terminal.until("ffline")
    terminal.ask("What is a quant?")
    terminal.until("fewer bits")
    assert not hub.seen
    terminal.press("C-q")
    terminal.until("left with 0")
