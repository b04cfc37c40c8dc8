"""The real app with a real worker in a real terminal."""

import re
import signal
import sqlite3
import sys
import time

import psutil
import pytest

from tests import scripted
from tests.terminal import Terminal, needs_tmux

pytestmark = needs_tmux

LONG = " ".join(f"word{number}" for number in range(4000))


class App(Terminal):
    """The app in a terminal."""

    def start(self, script, *, variables=""):
        settings = self.home / "config" / "settings.toml"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("titles = false\n")  # a script has none
        self.run([*scripted.COMMAND, "-m", str(script)], variables=variables)
        self.until("stays on this machine")

    def app(self):
        return self.processes("edgechat.py -m")[0]

    def worker(self):
        return self.processes("--child engine")[0]

    def turns(self):
        with sqlite3.connect(self.home / "data" / "chats.db") as db:
            return db.execute("SELECT role, content, state FROM turns ORDER BY position").fetchall()

    def chats(self):
        with sqlite3.connect(self.home / "data" / "chats.db") as db:
            return db.execute("SELECT title, pinned, trashed_at FROM conversations").fetchall()


@pytest.fixture
def terminal(tmp_path):
    with App(tmp_path) as opened:
        yield opened


@pytest.fixture
def script(tmp_path):
    def write(**fields):
        return scripted.write(tmp_path / "model.gguf", **{"token_ms": 2} | fields)

    return write


def test_a_question_is_answered_and_the_way_out_is_clean(terminal, script):
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


@pytest.mark.parametrize("leave", ["C-q", signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_leaving_in_mid_answer_leaves_the_terminal_as_it_was(terminal, script, leave):
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


def state_of(terminal):
    """Return the terminal's modes, as its driver and tmux know them."""
    terminal.press("C-u")
    terminal.ask("echo; stty -g")
    terminal.until(lambda: bool(re.search(r"^[0-9a-f:]{30,}$", terminal.screen, re.M)))
    modes = re.findall(r"^[0-9a-f:]{30,}$", terminal.screen, re.M)[-1]
    flags = (
        "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{wrap_flag} #{bracket_paste_flag} #{keypad_flag}"
    )
    return [modes, terminal.ask_tmux(flags)]


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.4])
def test_what_is_typed_while_the_app_starts_is_asked(terminal, script, delay):
    terminal.run([*scripted.COMMAND, "-m", str(script(reply="Hello."))])
    time.sleep(delay)
    terminal.type("Who are ")
    time.sleep(0.05)
    terminal.ask("you?")
    terminal.until("Hello.")
    assert "▌ Who are you?" in terminal.screen


def test_a_log_folder_that_takes_no_file_costs_the_log(terminal, script):
    terminal.home.mkdir()
    (terminal.home / "log").symlink_to("/proc")
    terminal.start(script(reply="Hello."))
    terminal.ask("Who are you?")
    terminal.until("Hello.")


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_the_app_ends_in_words_and_a_traceback_only_with_debug(terminal, script, debug):
    before = state_of(terminal)
    program = (
        "import sys\n"
        "from edgechat.__main__ import main\n"
        "from edgechat.base.process import spawn\n"
        "from edgechat.tui.chat.screen import ChatScreen\n"
        "ChatScreen.action_new_chat = lambda self: 1 / 0\n"
        f"spawn.PROGRAM = {scripted.PROGRAM}\n"
        "main()"
    )
    flags = ["--debug"] if debug else []
    terminal.run([sys.executable, "-c", program, "-m", str(script(reply=LONG)), *flags])
    terminal.until("stays on this machine")
    terminal.until("of 4,096 tokens")
    worker = terminal.worker()
    terminal.press("C-n")
    terminal.until("left with 3")
    assert "error: Internal error in edgechat: ZeroDivisionError" in terminal.screen
    assert (b"Traceback" in terminal.raw) == debug
    assert "│" not in terminal.screen
    assert state_of(terminal) == before
    psutil.wait_procs([worker], timeout=3)
    assert not worker.is_running()


def test_an_app_that_was_stopped_comes_back_with_its_picture(terminal, script):
    terminal.start(script(reply="Hello."))
    terminal.ask("Who are you?")
    terminal.until("Hello.")
    terminal.app().send_signal(signal.SIGTSTP)
    terminal.until("Stopped")
    assert "Hello." not in terminal.screen
    terminal.ask("fg")
    terminal.until("Hello.")
    terminal.until("Ask something")
    terminal.ask("And now?")
    terminal.until("▌ And now?")


@pytest.mark.soak
def test_an_app_can_be_stopped_at_any_moment(terminal, script):
    terminal.start(script(reply=40 * LONG))
    terminal.ask("Count.")
    terminal.until("word99")
    for number in range(60):
        time.sleep(0.013 * (number % 7))
        terminal.app().send_signal(signal.SIGTSTP)
        terminal.until("Stopped")
        terminal.ask("clear; fg")
        terminal.until("Writing")


def test_a_killed_worker_leaves_the_text_and_the_next_question_works(terminal, script):
    terminal.start(script(reply=LONG, rules=[{"when": "again", "reply": "Here again."}]))
    terminal.ask("Count.")
    terminal.until("word99")
    terminal.worker().kill()
    terminal.until("The engine process ended unexpectedly during an answer")
    assert "Traceback" not in terminal.screen
    terminal.ask("And again?")
    terminal.until("Here again.")
    (_, content, state) = terminal.turns()[1]
    assert state == "interrupted"
    assert "word99 " in content
    assert terminal.turns()[-1][2] == "complete"


def test_another_model_is_taken_while_one_loads(terminal, script):
    other = script(reply="The other.")
    other = other.rename(other.with_name("other.gguf"))
    terminal.start(script(reply="Hello.", load_ms=20_000))
    terminal.until("Loading the model")
    terminal.ask(f"/model {other}")
    terminal.until("other")
    for word in ("died", "closed", "Traceback"):
        assert word not in terminal.screen
    terminal.ask("Who are you?")
    terminal.until("The other.")


def test_escape_stops_and_the_next_question_works(terminal, script):
    terminal.start(script(reply=LONG, rules=[{"when": "again", "reply": "Here again."}]))
    terminal.ask("Count.")
    terminal.until("word9")
    terminal.press("Escape")
    terminal.until("You stopped the reply here")
    assert terminal.turns()[-1][2] == "stopped"
    terminal.ask("again")
    terminal.until("Here again.")


@pytest.mark.parametrize("end", ["kill", "hang up"])
def test_a_killed_app_loses_no_word_and_leaves_no_worker(terminal, script, end):
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


def test_the_next_app_marks_what_a_killed_one_left(tmp_path, terminal, script):
    model = script(reply=LONG)
    terminal.start(model)
    terminal.ask("Count.")
    terminal.until("word99")
    terminal.app().kill()
    terminal.until("left with 137")
    with App(tmp_path / "second", home=terminal.home) as second:
        second.start(model)
        second.until(lambda: second.turns()[-1][2] == "interrupted")


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(terminal, script):
    evil = "\x1b]52;c;aGFja2Vk\x07 \x1b]2;hacked\x07 \x9b31m \x1b[2J\x1bc Still here."
    terminal.start(script(reply=f"{evil}\n\n`{evil}`\n\n```\n{evil}\n```"))
    terminal.ask("Be evil.")
    terminal.until("tok/s")
    terminal.until(lambda: terminal.screen.count("Still here.") == 3)
    assert b"\x1b]52" not in terminal.raw
    assert b"hacked" in terminal.raw
    assert b"\x1b]2;hacked" not in terminal.raw
    assert b"\x1bc" not in terminal.raw
    assert terminal.ask_tmux("#{pane_title}") != "hacked"


def test_pasted_lines_are_one_message(terminal, script):
    terminal.start(script(reply="Ok."))
    terminal.paste("def f():\n    return 1\n\nprint(f())")
    terminal.until("print(f())")
    assert "▌ def f():" not in terminal.screen
    terminal.press("C-j")
    terminal.type("and more")
    terminal.press("Enter")
    terminal.until("Ok.")
    assert terminal.turns()[0][1] == "def f():\n    return 1\n\nprint(f())\nand more"


@pytest.mark.parametrize("keys", ["C-b", "Tab", "C-g", "C-b C-f Down"])
def test_text_in_one_burst_is_for_the_prompt_whatever_has_the_keys(terminal, script, keys):
    terminal.start(script(reply="Hello."))
    terminal.ask("Who are you?")
    terminal.until("Hello.")
    for key in keys.split():
        terminal.press(key)
        time.sleep(0.3)
    terminal.type("/model dxrpt dd")
    terminal.until("│ /model dxrpt dd")
    terminal.press("C-u")
    terminal.type("one")
    terminal.until("│ one ")
    assert len(terminal.turns()) == 2
    assert terminal.chats() == [("Who are you?", 0, None)]


@pytest.mark.parametrize(
    ("burst", "seen"),
    [
        ("\x02drop it", "│ unsent drop it"),  # Ctrl+B: the list
        ("\tquote it", "│ unsent quote it"),  # Tab: the turns
        ("\x06hello", "│ hello "),  # Ctrl+F: the search
        ("\x02/hello", "│ unsent /hello"),
        ("\x02\x1b[B\x1b[A\r", "Hello."),  # the list, Down, Up, Enter: opens a chat, and sends nothing
        ("\x07\x1b[Bx", "│ unsent x"),  # Ctrl+G: the engine room, in which x is no key
    ],
)
def test_keys_in_one_burst_go_where_each_of_them_leads(terminal, script, burst, seen):
    terminal.start(script(reply="Hello."))
    terminal.ask("Who are you?")
    terminal.until("Hello.")
    terminal.type("unsent ")
    terminal.until("│ unsent ")
    terminal.type(burst)
    terminal.until(seen)
    time.sleep(0.3)
    assert "unsent" in terminal.screen
    assert len(terminal.turns()) == 2
    assert terminal.chats() == [("Who are you?", 0, None)]


@pytest.mark.parametrize("key", ["", "\x06"])  # the prompt; Ctrl+F: the search
def test_editing_keys_in_one_burst_keep_their_order(terminal, script, key):
    terminal.start(script(reply="Hello."))
    terminal.type(key + "abcdefghi" + "\x7f" * 9 + "xyz" + "\x1b[D" + "!")
    terminal.until("│ xy!z ")


def test_editing_keys_that_come_while_the_app_starts_keep_their_order(terminal, script):
    terminal.run([*scripted.COMMAND, "-m", str(script(reply="Hello."))])
    time.sleep(0.4)
    terminal.type("abcdefghi" + "\x7f" * 9 + "xyz")
    terminal.until("│ xyz ")


def test_text_in_one_burst_answers_no_question_and_deletes_nothing(terminal, script):
    terminal.start(script(reply="Hello."))
    terminal.ask("Who are you?")
    terminal.until("Hello.")
    terminal.press("C-b")
    terminal.until("d Delete")
    terminal.type("d")
    terminal.until("in the trash")
    terminal.type("my")
    time.sleep(0.3)
    assert "in the trash" in terminal.screen
    terminal.type("n")
    terminal.until(lambda: "in the trash" not in terminal.screen)
    assert terminal.chats() == [("Who are you?", 0, None)]
    terminal.type("d")
    terminal.until("in the trash")
    terminal.type("y")
    terminal.until(lambda: terminal.chats()[0][2] is not None)


def test_without_colours_none_are_sent(terminal, script):
    terminal.start(script(reply="# A heading\n\n```python\nprint('x')\n```"), variables="NO_COLOR=1")
    terminal.ask("Paint.")
    terminal.until("print('x')")
    codes = {code for found in re.findall(rb"\x1b\[([0-9;]*)m", terminal.raw) for code in found.split(b";")}
    assert codes
    assert not codes & {b"%d" % code for code in (*range(30, 39), *range(40, 49), *range(90, 98))}


def test_a_second_app_on_the_same_store_does_no_harm(tmp_path, terminal, script):
    model = script(reply=LONG, token_ms=20)
    terminal.start(model)
    terminal.ask("Count.")
    terminal.until("word9")
    with App(tmp_path / "second", home=terminal.home) as second:
        second.start(model)
        second.ask("Count too.")
        second.until("word9")
        assert sorted(state for _, _, state in terminal.turns()) == ["complete"] * 2 + ["streaming"] * 2
