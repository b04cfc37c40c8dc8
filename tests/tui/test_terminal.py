"""The real app with a real worker in a real terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

LONG = " ".join(f"word{number}" for number in range(4000))


class Terminal:
    """A shell in tmux, and what the program in it wrote byte for byte."""

    def __init__(self, folder: Path, *, home: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.home = home or folder / "home"
        self.raw_path = folder / "raw"
        self._socket = str(folder / "tmux")
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "env PS1='$ ' sh")
        self._tmux("set-option", "-g", "default-terminal", "xterm-256color")
        self._tmux("pipe-pane", f"cat >> {self.raw_path}")

    def _tmux(self, *args: str) -> str:
        environment = os.environ | {"EDGECHAT_HOME": str(self.home), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            ["tmux", "-S", self._socket, *args], env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    def start(self, script: Path, *, variables: str = "") -> None:
        self.type(f"{variables} {sys.executable} -m edgechat -m {script}; echo left with $?")
        self.press("Enter")
        self.until("stays on this machine")

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def paste(self, text: str) -> None:
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    def ask(self, text: str) -> None:
        self.type(text)
        self.press("Enter")

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def raw(self) -> bytes:
        return self.raw_path.read_bytes()

    def ask_tmux(self, form: str) -> str:
        return self._tmux("display-message", "-p", form).strip()

    def until(self, wanted: str | Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if wanted in self.screen if isinstance(wanted, str) else wanted():
                return
            time.sleep(0.05)
        raise AssertionError(f"in vain waited for {wanted!r}; the screen shows:\n{self.screen}")

    def processes(self, mark: str) -> list[psutil.Process]:
        """Return the processes below the shell whose command line contains `mark`."""
        shell = psutil.Process(int(self.ask_tmux("#{pane_pid}")))
        return [one for one in shell.children(recursive=True) if mark in " ".join(one.cmdline())]

    def app(self) -> psutil.Process:
        return self.processes("edgechat -m")[0]

    def worker(self) -> psutil.Process:
        return self.processes("--child engine")[0]

    def turns(self) -> list[tuple[str, str, str]]:
        with sqlite3.connect(self.home / "data" / "chats.db") as db:
            return db.execute("SELECT role, content, state FROM turns ORDER BY position").fetchall()

    def hang_up(self) -> None:
        self._tmux("kill-session")

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    def write(**fields: Any) -> Path:
        path = tmp_path / "model.scripted.json"
        path.write_text(json.dumps({"token_ms": 2} | fields))
        return path

    return write


def test_a_question_is_answered_and_the_way_out_is_clean(terminal: Terminal, script: Any) -> None:
    before = state_of(terminal)
    terminal.start(script(reply="Hello **there**.", load_ms=300))
    terminal.ask("Who are you?")
    terminal.until("Hello there.")
    assert "▌ Who are you?" in terminal.screen
    terminal.until("tok/s")
    terminal.press("C-q")
    terminal.until("left with 0")
    assert "Hello there." not in terminal.screen
    assert state_of(terminal) == before


@pytest.mark.parametrize("leave", ["C-c", signal.SIGINT, signal.SIGTERM])
def test_leaving_in_mid_answer_leaves_the_terminal_as_it_was(
    terminal: Terminal, script: Any, leave: str | signal.Signals
) -> None:
    before = state_of(terminal)
    terminal.start(script(reply=LONG))
    terminal.ask("Count.")
    terminal.until("word99")
    if isinstance(leave, str):
        terminal.press(leave)
    else:
        terminal.app().send_signal(leave)
    terminal.until("left with 0")
    assert state_of(terminal) == before
    (_, content, state) = terminal.turns()[-1]
    assert state == "interrupted"
    assert "word99 " in content


def state_of(terminal: Terminal) -> list[str]:
    """Return the terminal's modes, as its driver and tmux know them."""
    terminal.press("C-u")
    terminal.ask("echo; stty -g")
    terminal.until(lambda: bool(re.search(r"^[0-9a-f:]{30,}$", terminal.screen, re.M)))
    modes = re.findall(r"^[0-9a-f:]{30,}$", terminal.screen, re.M)[-1]
    flags = (
        "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{wrap_flag} #{bracket_paste_flag} #{keypad_flag}"
    )
    return [modes, terminal.ask_tmux(flags)]


def test_a_killed_worker_leaves_the_text_and_the_next_question_works(terminal: Terminal, script: Any) -> None:
    terminal.start(script(reply=LONG, rules=[{"when": "again", "reply": "Here again."}]))
    terminal.ask("Count.")
    terminal.until("word99")
    terminal.worker().kill()
    terminal.until("The engine's process died in the middle of an answer")
    assert "Traceback" not in terminal.screen
    terminal.ask("And again?")
    terminal.until("Here again.")
    (_, content, state) = terminal.turns()[1]
    assert state == "interrupted"
    assert "word99 " in content
    assert terminal.turns()[-1][2] == "complete"


def test_escape_stops_and_the_next_question_works(terminal: Terminal, script: Any) -> None:
    terminal.start(script(reply=LONG, rules=[{"when": "again", "reply": "Here again."}]))
    terminal.ask("Count.")
    terminal.until("word9")
    terminal.press("Escape")
    terminal.until("You stopped the reply here")
    assert terminal.turns()[-1][2] == "stopped"
    terminal.ask("again")
    terminal.until("Here again.")


@pytest.mark.parametrize("end", ["kill", "hang up"])
def test_a_killed_app_loses_no_word_and_leaves_no_worker(terminal: Terminal, script: Any, end: str) -> None:
    terminal.start(script(reply=LONG))
    terminal.ask("Count.")
    terminal.until("word99")
    time.sleep(0.6)
    app, worker = terminal.app(), terminal.worker()
    if end == "kill":
        app.kill()
    else:
        terminal.hang_up()
    _, alive = psutil.wait_procs([app, worker], timeout=5)
    assert not alive
    (_, question, _), (_, content, state) = terminal.turns()
    assert question == "Count."
    assert "word99 " in content
    assert state == ("streaming" if end == "kill" else "interrupted")


def test_the_next_app_marks_what_a_killed_one_left(tmp_path: Path, terminal: Terminal, script: Any) -> None:
    model = script(reply=LONG)
    terminal.start(model)
    terminal.ask("Count.")
    terminal.until("word99")
    terminal.app().kill()
    terminal.until("left with 137")
    second = Terminal(tmp_path / "second", home=terminal.home)
    try:
        second.start(model)
        second.until(lambda: second.turns()[-1][2] == "interrupted")
    finally:
        second.close()


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(terminal: Terminal, script: Any) -> None:
    evil = "\x1b]52;c;aGFja2Vk\x07 \x1b]2;hacked\x07 \x9b31m \x1b[2J\x1bc Still here."
    terminal.start(script(reply=f"{evil}\n\n`{evil}`\n\n```\n{evil}\n```"))
    terminal.ask("Be evil.")
    terminal.until("tok/s")
    assert terminal.screen.count("Still here.") == 3
    assert b"\x1b]52" not in terminal.raw
    assert b"hacked" in terminal.raw
    assert b"\x1b]2;hacked" not in terminal.raw
    assert b"\x1bc" not in terminal.raw
    assert terminal.ask_tmux("#{pane_title}") != "hacked"


def test_pasted_lines_are_one_message(terminal: Terminal, script: Any) -> None:
    terminal.start(script(reply="Ok."))
    terminal.paste("def f():\n    return 1\n\nprint(f())")
    terminal.until("print(f())")
    assert not terminal.home.joinpath("data", "chats.db").exists() or not terminal.turns()
    terminal.press("C-j")
    terminal.type("and more")
    terminal.press("Enter")
    terminal.until("Ok.")
    assert terminal.turns()[0][1] == "def f():\n    return 1\n\nprint(f())\nand more"


def test_without_colours_none_are_sent(terminal: Terminal, script: Any) -> None:
    terminal.start(script(reply="# A heading\n\n```python\nprint('x')\n```"), variables="NO_COLOR=1")
    terminal.ask("Paint.")
    terminal.until("print('x')")
    codes = {code for found in re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw) for code in found.split(b";")}
    assert codes
    assert not codes & {b"%d" % code for code in (*range(30, 39), *range(40, 49), *range(90, 98))}


def test_a_second_app_on_the_same_store_does_no_harm(tmp_path: Path, terminal: Terminal, script: Any) -> None:
    model = script(reply=LONG, token_ms=20)
    terminal.start(model)
    terminal.ask("Count.")
    terminal.until("word9")
    second = Terminal(tmp_path / "second", home=terminal.home)
    try:
        second.start(model)
        second.ask("Count too.")
        second.until("word9")
        assert sorted(state for _, _, state in terminal.turns()) == ["complete"] * 2 + ["streaming"] * 2
    finally:
        second.close()
