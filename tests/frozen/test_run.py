"""One question, and its answer, from the frozen program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frozen.program import Program, Script
from tests.terminal import Terminal, needs_tmux

QUESTION = "What is edgechat?"
ODD = "Was ist edgechat? — «ü» 模型 🙂"


def test_the_guide_drafts_says_the_same_again_and_goes_on(program: Program) -> None:
    first = program.found("run", "guide", QUESTION, "--temperature", "0")
    assert "chat with a language model on your own machine" in first["text"]
    assert first["finish_reason"] == "stop"
    assert first["timings"]["decode_tps"] > 1
    assert first["plan"]["draft"]["model"] == "guide-draft"
    assert first["speculation"]["accepted_tokens"] > 0

    piped = program("run", "guide", "-", "--temperature", "0", piped=QUESTION)
    assert piped.stdout == first["text"] + "\n"
    assert "tokens/s" in piped.stderr

    third = program.found("run", "guide", "Does it work offline?", "--continue")
    assert third["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + 20
    assert third["text"]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_letters_of_all_kinds_come_through(program: Program, script: Script, locale: str) -> None:
    model = script(reply=ODD)
    found = program.found("run", model, ODD, LC_ALL=locale)
    assert found["text"] == ODD
    shown = program.said("chats", "show", found["chat"], LC_ALL=locale)
    assert shown.count(ODD) >= 2
    assert program.said("run", model, "-", "--no-store", piped=ODD, LC_ALL=locale) == ODD + "\n"


def test_conversations_are_listed_exported_and_read_again(newcomer: Program, script: Script) -> None:
    chat = newcomer.found("run", script(reply=ODD), "Hi")["chat"]
    file = newcomer.home / "Gespräch.json"
    newcomer.said("chats", "export", chat, file, "--json")
    newcomer.said("chats", "rm", chat, "--yes")
    assert newcomer.found("chats") == []
    newcomer.said("chats", "import", file)
    (again,) = newcomer.found("chats")
    assert ODD in newcomer.said("chats", "show", again["id"])


@needs_tmux
def test_ctrl_c_ends_an_answer_and_keeps_it(newcomer: Program, script: Script, tmp_path: Path) -> None:
    model = script(reply="ab " * 5000, token_ms=5)
    with Terminal(tmp_path / "terminal") as terminal:
        launch = newcomer.launcher(tmp_path)
        terminal.run(["sh", str(launch), "run", str(model), "hi"])
        terminal.until("ab ab ab")
        assert len(newcomer.family()) >= 2
        terminal.press("C-c")
        terminal.until("left with 130")
        assert "Traceback" not in terminal.screen
        newcomer.is_gone()
    assert newcomer.turns()[-1][2] == "stopped"
    assert newcomer.turns()[-1][1].startswith("ab ab")
