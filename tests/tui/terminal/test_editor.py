"""The prompt in the user's own editor, in a real terminal."""

import shlex
import signal
import sqlite3
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from edgechat.base.errors import EditorError
from edgechat.tui.terminal.programs import edit
from tests import scripted
from tests.terminal import Terminal, needs_tmux

pytestmark = needs_tmux


@pytest.fixture
def terminal(tmp_path):
    with Terminal(tmp_path / "terminal") as opened:
        yield opened


@pytest.fixture
def model(tmp_path):
    return scripted.write(tmp_path / "model.gguf", reply="Hello.", token_ms=2)


def program(tmp_path, text):
    """Write an editor: a script that is given the file."""
    path = tmp_path / "my editor"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def start(terminal, model, editor):
    terminal.run([*scripted.COMMAND, "-m", str(model)], variables=f"VISUAL= EDITOR={editor}")
    terminal.until("of 4,096 tokens")


@pytest.mark.parametrize("how", ["F6", "/editor"])
def test_the_editors_text_comes_back_and_the_file_is_gone(terminal, model, tmp_path, how):
    seen = tmp_path / "seen"
    editor = program(
        tmp_path,
        f'stat -c "%a %n" "$1" >> {seen}; cat "$1" >> {seen}; echo in the editor; read line\n'
        f'printf "%s and\\nmore\\n" "$line" > "$1"',
    )
    start(terminal, model, f"'\"{editor}\"'")
    if how == "F6":
        terminal.type("draft")
        terminal.until("│ draft")
        terminal.press("F6")
    else:
        terminal.ask(how)
    terminal.until("in the editor")
    terminal.ask("typed there")
    terminal.until("│ typed there and")
    terminal.until("│ more")
    mode, _, rest = seen.read_text().partition(" ")
    name, _, text = rest.partition("\n")
    assert (mode, text) == ("600", "draft" if how == "F6" else "")
    assert not Path(name).parent.exists()
    terminal.press("Enter")
    terminal.until("Hello.")
    if how == "F6":
        terminal.press("C-q")
        terminal.until("left with 0")


def test_control_c_in_the_editor_does_not_end_the_app(terminal, model, tmp_path):
    editor = program(tmp_path, "echo in the editor; read line")
    start(terminal, model, f"'\"{editor}\"'")
    terminal.type("draft")
    terminal.until("│ draft")
    terminal.press("F6")
    terminal.until("in the editor")
    terminal.press("C-c")
    terminal.until("The prompt is unchanged.")
    terminal.until("│ draft")
    terminal.type("ed")
    terminal.until("│ drafted")


def test_replies_go_on_while_the_editor_is_open(terminal, tmp_path):
    long = scripted.write(tmp_path / "long.gguf", reply="word " * 100 + "end", token_ms=10)
    start(terminal, long, f"'\"{program(tmp_path, 'echo in the editor; read line')}\"'")
    terminal.ask("Count.")
    terminal.until("word word")
    terminal.press("F6")
    terminal.until("in the editor")
    with sqlite3.connect(terminal.home / "data" / "chats.db") as db:
        query = "SELECT state FROM turns ORDER BY position DESC LIMIT 1"
        terminal.until(lambda: db.execute(query).fetchone() == ("complete",))
    assert "in the editor" in terminal.screen
    terminal.press("Enter")
    terminal.until("word end")


def test_an_app_that_is_ended_ends_its_editor(terminal, model, tmp_path):
    start(terminal, model, f"'\"{program(tmp_path, 'echo in the editor; exec sleep 1000')}\"'")
    terminal.press("F6")
    terminal.until("in the editor")
    (app,) = terminal.processes("edgechat.py -m")
    app.send_signal(signal.SIGTERM)
    terminal.until("left with 0")
    assert not terminal.processes("sleep 1000")


@pytest.mark.parametrize(
    ("editor", "told"),
    [
        ("", "No editor is set."),
        ("/nowhere/editor", "/nowhere/editor"),
        ("false", "The editor false has ended with an error (1)."),
        ("'\"unclosed'", "The editor command cannot be parsed"),
    ],
)
def test_an_editor_that_does_not_work_is_told_and_the_prompt_stays(terminal, model, editor, told):
    start(terminal, model, editor)
    terminal.type("draft")
    terminal.until("│ draft")
    terminal.press("F6")
    terminal.until(lambda: told in " ".join(terminal.screen.replace("│", " ").split()))
    terminal.until("│ draft")
    terminal.type("ed")
    terminal.until("│ drafted")


class Suspended:
    """As much of an app as an editor needs."""

    def suspend(self):
        return nullcontext()

    batch_update = suspend


@pytest.mark.parametrize("end", ["exit 1", 'head -c 5000000 /dev/zero >> "$1"'])
async def test_what_was_saved_outlives_the_editors_error(tmp_path, monkeypatch, end):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", shlex.quote(str(program(tmp_path, f'printf mine > "$1"; {end}'))))
    with pytest.raises(EditorError) as told:
        await edit(Suspended(), "draft")
    (file,) = tmp_path.glob("edgechat-*/prompt.md")
    assert told.value.hint == f"The prompt is unchanged. What the editor saved: {file}"
    assert file.read_text().startswith("mine")


async def test_an_editor_that_saved_nothing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "false")
    with pytest.raises(EditorError, match="error") as told:
        await edit(Suspended(), "draft")
    assert told.value.hint == "The prompt is unchanged."
    assert list(tmp_path.glob("edgechat-*")) == []
