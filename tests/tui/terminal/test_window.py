import pytest

from edgechat.settings import Settings
from edgechat.tui.terminal.window import TerminalWindow
from tests.fakes import FakeEngine
from tests.tui.driving import app_with, driven


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    for name in ("TERM_PROGRAM", "TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_the_title_is_kept_set_when_it_changes_and_restored():
    written = []
    TerminalWindow(written.append).restore_title()
    assert written == []
    window = TerminalWindow(written.append)
    window.show_title("Bread")
    window.show_title("Bread")
    window.show_title("Bread", is_busy=True)
    window.restore_title()
    window.restore_title()
    window.show_title("Late")
    assert written == ["\x1b[22;2t\x1b]2;Bread\x1b\\", "\x1b]2;● Bread\x1b\\", "\x1b]2;\x1b\\\x1b[23;2t"]


def test_a_title_cannot_end_its_sequence():
    written = []
    TerminalWindow(written.append).show_title("a\x1b\\\x07\x9cb\n]2;c")
    assert written[0].count("\x1b") == 3
    assert not set("\x07\x9c\n") & set(written[0])


@pytest.mark.parametrize("term", ["linux", "dumb", ""])
def test_a_terminal_without_a_window_gets_no_title(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    written = []
    TerminalWindow(written.append).show_title("Bread")
    assert written == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "\a"),
        ({"TERM_PROGRAM": "iTerm.app"}, "\x1b]9;a;b\x1b\\"),
        ({"TERM": "xterm-kitty"}, "\x1b]9;a;b\x1b\\"),
        ({"TERM": "foot"}, "\x1b]777;notify;edgechat;a,b\x1b\\"),
        ({"TERM_PROGRAM": "WezTerm", "TMUX": "/tmp/x"}, "\a"),
    ],
)
def test_a_message_is_one_of_the_desktop_where_the_terminal_can(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    written = []
    TerminalWindow(written.append).announce("a;b")
    assert written == [expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("focused", "notify", "expected"), [(False, True, 1), (True, True, 0), (False, False, 0)]
)
async def test_only_a_user_who_is_elsewhere_and_wants_it_is_told(
    tmp_path, monkeypatch, focused, notify, expected
):
    monkeypatch.setattr("edgechat.tui.chat.controller._LONG", 0.0)
    told = []
    settings = Settings(notify=notify)
    app = app_with(FakeEngine(["One ", 60.0]), tmp_path / "chats.db", settings=settings)
    monkeypatch.setattr(app.window, "announce", told.append)
    async with driven(app) as pilot:
        await pilot.ask("Hi", see="One")
        app.app_focus = focused  # after the key, which tells that it has the focus
        await app.chat.controller.shown.stop()
        await pilot.until(lambda: not app.chat.answering and len(told) == expected)
    assert told == ["Hi: the answer was stopped."] * expected


@pytest.mark.slow
async def test_the_title_is_that_of_the_conversation(tmp_path, monkeypatch):
    titles = []
    app = app_with(FakeEngine(["One ", 0.3, "two."]), tmp_path / "chats.db")
    monkeypatch.setattr(app.window, "show_title", lambda title, is_busy: titles.append((title, is_busy)))
    async with driven(app) as pilot:
        await pilot.say("Bread?")
        await pilot.pause()
    assert titles[0][0] == "edgechat"
    assert ("Bread? – edgechat", True) in titles
    assert titles[-1] == ("Bread? – edgechat", False)
