"""The frozen app in a real terminal: the guide answers, and no death, of worker or app, costs a word."""

import re

import pytest

from tests.frozen.program import until
from tests.terminal import Terminal, needs_tmux

pytestmark = needs_tmux


class App(Terminal):
    """A terminal in which the frozen app is started."""

    def __init__(self, folder, program):
        super().__init__(folder)
        self.launch = str(program.launcher(folder))
        self._asked = 0

    def start(self, *words):
        self.run(["sh", self.launch, *words])
        self.until("stays on this machine")

    def modes(self):
        """Return the terminal's modes, as its driver and tmux know them."""
        # The last answer may still be on the screen, and so is the question.
        self._asked += 1
        end = f":end {self._asked}"
        self.ask(f"clear; stty -g | tr -d '\\n'; echo ':end' {self._asked}")
        self.until(lambda: f"{end}\n" in self.screen)
        flags = "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{bracket_paste_flag} #{keypad_flag}"
        return [self.screen.split(end)[0], self.ask_tmux(flags)]


def settings(program):
    """Return what the app has written to its file of settings."""
    return "".join(path.read_text() for path in program.home.rglob("settings.toml"))


def letters(text):
    """Return the small letters of a text, wherever it is wrapped."""
    return re.sub("[^a-z]", "", text)


@pytest.fixture
def terminal(tmp_path, newcomer):
    with App(tmp_path / "terminal", newcomer) as opened:
        yield opened


def test_from_the_first_start_to_the_second(terminal, newcomer):
    before = terminal.modes()
    terminal.run(["sh", terminal.launch])
    terminal.until("Welcome to edgechat")
    terminal.until("Ask the guide")
    terminal.press("g")
    terminal.until("of 2,048 tokens")
    terminal.ask("How do I quantize a model?")
    terminal.until("▌ How do I quantize a model?")
    terminal.until("makes a smaller GGUF")
    terminal.until("tok/s")

    terminal.press("C-g")
    terminal.until("guide-draft, n-grams")
    terminal.press("Escape")
    terminal.until("▌ How do I quantize a model?")
    terminal.press("F2")
    terminal.until("▌ model")
    terminal.press("/")
    terminal.until(lambda: "⏎ Change" not in terminal.screen)
    terminal.type("theme")
    terminal.until(lambda: "Conversation" not in terminal.screen)
    terminal.press("Enter")
    terminal.until("▌ theme")
    terminal.press("Right")
    terminal.until(lambda: 'theme = "dark"' in settings(newcomer))
    terminal.press("Escape")  # the filter
    terminal.until("Filter by name or description")
    terminal.press("Escape")
    terminal.until("▌ How do I quantize a model?")
    terminal.press("C-q")
    terminal.until("left with 0")
    assert "makes a smaller GGUF" not in terminal.screen
    assert terminal.modes() == before

    terminal.start()
    terminal.until("of 2,048 tokens")
    assert "Welcome to edgechat" not in terminal.screen
    terminal.press("C-f")
    terminal.type("quant")
    terminal.until("How do I quantize")
    terminal.press("Enter")
    terminal.until("makes a smaller GGUF")
    terminal.press("C-q")
    terminal.until("left with 0")
    assert [role for role, _, _ in newcomer.turns()] == ["user", "assistant"]
    assert 'theme = "dark"' in settings(newcomer)


def test_a_killed_worker_leaves_the_text_and_is_asked_again(terminal, newcomer, slow):
    terminal.start("--model", str(slow))
    terminal.ask("Count.")
    begun = newcomer.begun()
    newcomer.child("engine").kill()
    terminal.until("The engine process ended unexpectedly during an answer")
    assert letters(begun)[-50:] in letters(terminal.screen)
    assert "Traceback" not in terminal.screen
    terminal.press("C-r")
    until(lambda: newcomer.turns()[-1][2] == "streaming" and newcomer.begun())
    terminal.press("C-q")
    terminal.until("left with 0")


def test_a_killed_app_loses_no_word_and_the_next_one_has_them(terminal, newcomer, slow, tmp_path):
    words = ("--model", str(slow))
    terminal.start(*words)
    terminal.ask("Count.")
    begun = newcomer.begun()
    (app,) = [one for one in newcomer.family() if "--child" not in one.cmdline()]
    app.kill()
    terminal.until("left with 137")
    newcomer.is_gone()
    with App(tmp_path / "second", newcomer) as second:
        second.start(*words)
        second.until(lambda: newcomer.turns()[-1][2] == "interrupted")
        second.press("C-b")
        second.until("Today")
        second.press("Enter")
        second.until("▌ Count.")
        second.until(lambda: letters(begun)[:30] in letters(second.screen))
        second.press("C-q")
        second.until("left with 0")
    assert newcomer.answer().startswith(begun)


def test_a_closed_terminal_ends_the_app(terminal, newcomer, slow):
    terminal.start("--model", str(slow))
    terminal.ask("Count.")
    begun = newcomer.begun()
    terminal.hang_up()
    newcomer.is_gone()
    assert newcomer.turns()[-1][2] == "interrupted"
    assert newcomer.answer().startswith(begun)
