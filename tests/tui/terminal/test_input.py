"""What comes from the terminal, byte by byte, and the app that goes on."""

import random
import sys

import pytest
from textual import events

from tests import scripted
from tests.terminal import Terminal, hostile, needs_tmux

if sys.platform == "win32":
    pytest.skip("there is no such driver on Windows", allow_module_level=True)

from edgechat.tui.terminal.input import TerminalInput, TerminalReply

START, END = b"\x1b[200~", b"\x1b[201~"


def of(messages):
    """Return what was typed and pasted."""
    found = []
    for one in messages:
        if isinstance(one, events.Key):
            found.append(one.character or one.key)
        elif isinstance(one, TerminalReply):
            found.append(f"{{{one.text}}}")
        else:
            found.append(f"<{one.text}>" if isinstance(one, events.Paste) else type(one).__name__)
    return found


@pytest.mark.parametrize(
    ("data", "meant"),
    [
        (b"ab\xe9cd", ["a", "b", "�", "c", "d"]),
        (b"\xff\xfe\xc0\x80a", [*"����", "a"]),
        ("dé€😀".encode(), ["d", "é", "€", "😀"]),
        (b"a\x1b[99999999999;1ub", ["a", "b"]),
        (b"a\x1b[55296ub", ["a", "b"]),
        (b"a\x1b[;;1114112ub", ["a", "b"]),
        (b"\x1b[48;999999999;999999999;1;1ta", ["a"]),
        (b"\x1b[48;0;0;0;0ta", ["a"]),
        (b"\x1b[48;2048;2048;0;0ta", ["a"]),
        (b"\x1b[48;30;100;0;0ta", ["Resize", "a"]),
        (b"\x1b[Aa", ["up", "a"]),
        (b"x" + START + b"one\rtwo\n" + END + b"y", ["x", "<one\rtwo\n>", "y"]),
        (START + END, ["<>"]),
        (START + b"rm -rf\x1b]52;c;aGk=\x07\r/quit\r" + END, ["<rm -rf\x1b]52;c;aGk=\x07\r/quit\r>"]),
        (START + b"a" + START + b"\x1b[48;9;9;9;9tb" + END, ["<a\x1b[200~\x1b[48;9;9;9;9tb>"]),
        (START + b"\xe9\x1b" + END + b"z", ["<�\x1b>", "z"]),
        (b"a\x1bP>|kitty(0.41.1)\x1b\\b", ["a", "{\x1bP>|kitty(0.41.1)}", "b"]),
        (b"a\x1b_Gi=1;OK\x1b\\b", ["a", "{\x1b_Gi=1;OK}", "b"]),
        (b"\x1b_Gi=1;OK\x07\x1bP>|x\x1b\\", ["{\x1b_Gi=1;OK}", "{\x1bP>|x}"]),
        (b"\x1bP>|cut off\x1b[Aa", ["up", "a"]),
        (b"\x1bP>|cut off\x1b\x1bP>|x\x1b\\a", ["{\x1bP>|x}", "a"]),
        (b"\x1bP>|" + b"x" * 600 + b"a", [*"x" * 91, "a"]),
        (b"\x1bP>|" + START + b"a" + END + b"b", ["<a>", "b"]),
        (START + b"\x1bP>|kitty\x1b\\" + END, ["<\x1bP>|kitty\x1b\\>"]),
    ],
)
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_every_byte_means_something_or_nothing(data, meant, piece):
    typed = TerminalInput()
    found = []
    for at in range(0, len(data), piece):
        found += typed.feed(data[at : at + piece])
    assert of(found) == meant


@pytest.mark.parametrize(
    ("data", "meant"),
    [
        (b"\x1bP", ["alt+shift+p"]),
        (b"\x1bP>", ["alt+shift+p", "greater_than_sign"]),
        (b"\x1b", ["escape"]),
        (b"\x1bP>|kit", []),
    ],
)
def test_keys_that_a_reply_could_begin_with_are_keys(data, meant, monkeypatch):
    now = 1000.0
    for clock in ("edgechat.tui.terminal.input.monotonic", "textual._parser.get_time"):
        monkeypatch.setattr(clock, lambda: now)
    typed = TerminalInput()
    found = [*typed.feed(data), *typed.tick()]
    assert found == []
    for _ in range(3):
        now += 0.6
        found += typed.tick()
    assert [one.key for one in found if isinstance(one, events.Key)] == meant
    assert of(typed.feed(b"a")) == ["a"]


def test_random_bytes_are_outlived():
    draw = random.Random(7)
    parts = [
        b"\x1b[",
        b"\x1b",
        b"\x1b[<",
        b"\x1b[48;",
        b";",
        b"9" * 12,
        b"u",
        b"~",
        b"M",
        b"t",
        b"\xe9",
        b"a:",
        b"\x1bP>|",
        b"\x1b_G",
        b"\x1b\\",
    ]
    typed = TerminalInput()
    for _ in range(3000):
        list(typed.feed(draw.choice(parts) if draw.random() < 0.8 else draw.randbytes(5)))
        if draw.random() < 0.1:
            list(typed.tick())
    list(typed.feed(END + b"   "))
    assert of(typed.feed(b"hi")) == ["h", "i"]


def test_a_large_paste_takes_a_moment():
    typed = TerminalInput()
    data = START + b"word " * 1_000_000 + END
    found = [one for at in range(0, len(data), 4096) for one in typed.feed(data[at : at + 4096])]
    (paste,) = found
    assert isinstance(paste, events.Paste)
    assert len(paste.text) == 5_000_000


@pytest.fixture
def terminal(tmp_path):
    with Terminal(tmp_path) as opened:
        yield opened


@needs_tmux
def test_bytes_that_are_no_text_do_not_end_the_app(tmp_path, terminal):
    model = scripted.write(tmp_path / "model.gguf", token_ms=2, reply="Understood.")
    terminal.run([*scripted.COMMAND, "-m", str(model)])
    terminal.until("stays on this machine")
    terminal.send(b"caf\xe9 \xff\x1b[99999999999;1u\x1b[55296u\x1b[48;999999999;999999999;1;1tau lait")
    terminal.until("caf� �au lait")
    terminal.send(START + b"pasted\x1b]52;c;aGFja2Vk\x07\rand on" + END)
    terminal.until("and on")
    assert "Understood." not in terminal.screen  # no line's end in it was an Enter
    terminal.press("Enter")
    terminal.until("Understood.")
    terminal.until("tok/s")
    terminal.press("Escape")
    terminal.press("C-q")
    terminal.until("left with 0")
    assert hostile(terminal.raw) == []
