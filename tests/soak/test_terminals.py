"""Hostile input from a real terminal: the app lives, and nothing of it comes out again.

EDGECHAT_SOAK_TERMINALS sets another number of things that are sent.
"""

import base64
import os
import random
import re
import shlex
import sys
import time

import pytest

from tests import scripted
from tests.terminal import Terminal, hostile, needs_tmux

SENT = int(os.environ.get("EDGECHAT_SOAK_TERMINALS", "600"))
pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(3600), needs_tmux]

START, END = b"\x1b[200~", b"\x1b[201~"
WORD = base64.b64encode(b"hacked")
"""What a copy by hostile text would hold; one that the user makes holds more than this word."""
EVIL = (
    b"\x1b]52;c;" + WORD + b"\x07 \xc2\x9d52;c;" + WORD + b"\xc2\x9c \xc2\x9b2J \xe2\x80\xaegpj \xe2\x80\xa8"
)
LEAVING = bytes.maketrans(b"\x03\x11\x1a", b"...")
"""Ctrl+C, Ctrl+Q and Ctrl+Z end or stop the app, as they should."""


def noise(draw):
    return draw.randbytes(draw.randrange(1, 300)).translate(LEAVING)


def letters(draw):
    return "".join(
        chr(draw.choice([draw.randrange(32, 127), draw.randrange(0xA0, 0x3000)])) for _ in "x" * 40
    ).encode()


def sequence(draw):
    """Return a sequence with numbers and ends that no terminal sends, cut off now and then."""
    numbers = [draw.choice([b"", b"0", b"-1", b"48", b"2048", b"%d" % draw.getrandbits(70)]) for _ in "abc"]
    begin = draw.choice(
        [b"\x1b[", b"\x1b[<", b"\x1b[?", b"\x1bO", b"\x1b]", b"\x1bP", b"\x1b[48;", b"\xc2\x9b"]
    )
    whole = (
        begin + b";".join(numbers) + draw.choice([b"u", b"~", b"M", b"m", b"t", b"R", b"$y", b"A", b"I", b""])
    )
    return whole[: draw.randrange(1, len(whole) + 1)] if draw.random() < 0.2 else whole


def paste(draw):
    inside = draw.choice([EVIL, noise(draw), letters(draw), b"\r/quit\r", b"@\x1b\t"]) * draw.choice(
        [1, 2, 50]
    )
    return START + inside.replace(END, b"") + END


def large_paste(draw):
    return START + (EVIL + letters(draw) + b"\n") * 3000 + END


def keys(draw):
    """Return keys that go about in the app: to other screens and back, up and down, into what was said."""
    known = [
        b"\x1b",
        b"\t",
        b"\r",
        b"\x1b[A",
        b"\x1b[B",
        b"\x1bOQ",
        b"\x1bOS",
        b"\x1bOP",
        b"\x0f",
        b"\x10",
        b"\x02",
    ]
    return b"".join(draw.choices([*known, b"\x06", b"\x0e", b"\x15", b"/", b"@", b"e", b"q"], k=6))


KINDS = [noise, letters, sequence, sequence, paste, keys, keys]


def left(terminal):
    return re.search(r"left with \d", terminal.screen) is not None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hostile_input_is_outlived(tmp_path, seed):
    draw = random.Random(seed)
    model = scripted.write(tmp_path / "model.gguf", token_ms=1, reply=f"So be it. {EVIL.decode()}")
    files = tmp_path / "files"
    files.mkdir()
    (files / f"notes {EVIL.decode()}.txt").write_text("milk")
    # Nothing of this machine's is in reach of the keys: no model to delete, no hub.
    away = {"HOME": tmp_path / "user", "HF_HUB_CACHE": tmp_path / "hub", "EDGECHAT_OFFLINE": 1}
    variables = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in away.items())
    with Terminal(tmp_path / "terminal") as terminal:
        terminal.ask(f"cd '{files}'")
        terminal.run(
            [sys.executable, "-X", "faulthandler", "-P", *scripted.PROGRAM, "--debug", "-m", str(model)],
            variables=variables,
        )
        terminal.until("stays on this machine")
        for number in range(SENT // 3):
            kind = large_paste if number % 97 == 5 else draw.choice(KINDS)
            terminal.send(kind(draw))
            if draw.random() < 0.1:
                terminal.resize(draw.randrange(1, 200), draw.randrange(1, 60))
            if draw.random() < 0.1:
                time.sleep(0.3)  # as long as an Escape takes to be one
            assert not left(terminal), (seed, number, terminal.screen)
        terminal.send(END)  # of a paste that may have been left open
        terminal.resize(100, 30)
        time.sleep(1)
        terminal.press("C-q")
        terminal.until(lambda: left(terminal), 300)  # what was sent is worked off first
        assert "left with 0" in terminal.screen, terminal.screen
        assert not [one for one in hostile(terminal.raw) if not one.startswith(b"\x1b]52;") or WORD in one]
