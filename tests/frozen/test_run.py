"""One question, and its answer, from the frozen program."""

import pytest

from tests.terminal import Terminal, needs_tmux

QUESTION = "What is edgechat?"
ODD = "Was ist edgechat? — «ü» 模型 🙂"


def test_the_guide_drafts_says_the_same_again_and_goes_on(program):
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
def test_letters_of_all_kinds_come_through(program, locale):
    words = ("run", "guide", "--temperature", "0")
    found = program.found(*words, ODD, LC_ALL=locale)
    assert ODD in program.said("chats", "show", found["chat"], LC_ALL=locale)
    piped = program.found(*words, "-", piped=ODD, LC_ALL=locale)
    assert piped["text"] == found["text"]
    assert ODD in program.said("chats", "show", piped["chat"], LC_ALL=locale)


def test_conversations_are_listed_exported_and_read_again(newcomer):
    chat = newcomer.found("run", "guide", ODD)["chat"]
    file = newcomer.home / "Gespräch.json"
    newcomer.said("chats", "export", chat, file, "--json")
    newcomer.said("chats", "rm", chat, "--yes")
    assert newcomer.found("chats") == []
    newcomer.said("chats", "import", file)
    (again,) = newcomer.found("chats")
    assert ODD in newcomer.said("chats", "show", again["id"])


@needs_tmux
def test_ctrl_c_ends_an_answer_and_keeps_it(newcomer, slow, tmp_path):
    with Terminal(tmp_path / "terminal") as terminal:
        launch = newcomer.launcher(tmp_path)
        terminal.run(["sh", str(launch), "run", str(slow), "hi"])
        newcomer.begun()
        assert len(newcomer.family()) >= 2
        terminal.press("C-c")
        terminal.until("left with 130")
        assert "Traceback" not in terminal.screen
        newcomer.is_gone()
    assert newcomer.turns()[-1][2] == "stopped"
    assert len(newcomer.answer()) >= 100
