"""The app in terminals that answer for pictures at once, late, or not at all."""

import os
import select
import signal
import struct
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from tests import scripted
from tests.base.images.files import BLUE, GREEN, RED, WHITE, encoded, quadrants
from tests.fakes import MODEL, FakeEngine
from tests.graphics import KittyScreen, placeholder_cells
from tests.tui.driving import Scenes

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals on Windows", allow_module_level=True)

import fcntl
import pty
import termios

pytestmark = pytest.mark.slow

ROWS, COLUMNS, CELL = 40, 100, (10, 20)
ASKED_NAME, ASKED_SUPPORT = b"\x1b[>q", b"\x1b_Gi=1,s=1,v=1,a=q"
NAME, SUPPORT = b"\x1bP>|kitty(0.41.1)\x1b\\", b"\x1b_Gi=1;OK\x1b\\"


@pytest.fixture
async def home(tmp_path):
    """A folder with one conversation: an image, and an answer that is longer than the screen."""
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    (home / "config").mkdir()
    (home / "config" / "settings.toml").write_text("titles = false\n")
    photo = tmp_path / "photo.png"
    photo.write_bytes(encoded(quadrants(640, 320), "PNG"))
    engine = FakeEngine(["line\n\n" * 50])
    engine.model = msgspec.structs.replace(MODEL, sees=True)
    async with Scenes(home / "data" / "chats.db")(engine) as pilot:
        await pilot.app.screen.pane.attach_file(str(photo))
        await pilot.say("What is this?")
    return home


class AnsweringTerminal:
    """edgechat with its last conversation, in a terminal that a test answers for; ended on exit."""

    def __init__(self, home, *, answers=True, **variables):
        self.screen = KittyScreen()
        self.raw = b""
        self._process = None
        self._answers = answers
        self._heard = 0
        """The bytes that have been answered."""
        model = scripted.write(home / "model.gguf", reply="Hello.", token_ms=2)
        self._fd, app_end = pty.openpty()
        self.set_cell_size(*CELL)
        cleared = {
            name: value for name, value in os.environ.items() if name not in ("TMUX", "STY", "NO_COLOR")
        }
        cleared |= {"EDGECHAT_HOME": str(home), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self._process = subprocess.Popen(
            [*scripted.COMMAND, "-c", "-m", str(model)],
            stdin=app_end,
            stdout=app_end,
            stderr=app_end,
            env=cleared | variables,
            start_new_session=True,
        )
        os.close(app_end)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, tb):
        self._process.terminate()
        self._process.wait(10)
        os.close(self._fd)

    def set_cell_size(self, width, height):
        size = struct.pack("HHHH", ROWS, COLUMNS, COLUMNS * width, ROWS * height)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        if self._process is not None:  # it is in no foreground group that would be told
            self._process.send_signal(signal.SIGWINCH)

    def press(self, keys):
        os.write(self._fd, keys)

    def answer(self):
        """Answer what has been asked so far, and from now on."""
        self._answers = True
        new, self._heard = self.raw[self._heard :], len(self.raw)
        for question, answer in ((ASKED_NAME, NAME), (ASKED_SUPPORT, SUPPORT)):
            if question in new:
                self.press(answer)

    def until(self, true, seconds=30.0):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"in vain waited for it: {self.raw[-3000:]!r}"
            self._read(0.05)

    def listen(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read(0.05)

    def _read(self, seconds):
        if select.select([self._fd], [], [], seconds)[0]:
            try:
                self.raw += os.read(self._fd, 1 << 16)
            except OSError:  # the app has left
                time.sleep(seconds)
            if self._answers:
                self.answer()
            self.screen = KittyScreen()
            self.screen.feed(self.text)

    @property
    def pid(self):
        return self._process.pid

    @property
    def text(self):
        return self.raw.decode("utf-8", "replace")

    def leave(self):
        self.press(b"\x11")
        self.until(lambda: self._process.poll() is not None)
        return self._process.returncode

    def go_to_the_image(self):
        self.until(lambda: b"What you write" not in self.raw[-2000:] and b"of 4,096 tokens" in self.raw)
        self.press(b"\t")
        self.until(lambda: b"Quote" in self.raw)
        self.press(b"\x1b[H")
        self.until(lambda: "▀".encode() in self.raw)


def test_a_picture_is_sent_once_it_is_on_the_screen_and_freed_at_the_end(home):
    with AnsweringTerminal(home) as terminal:
        terminal.until(lambda: terminal.screen.queries == 1)
        terminal.listen(1.0)
        assert terminal.screen.sent == []  # it is above the screen
        terminal.go_to_the_image()
        terminal.until(lambda: bool(placeholder_cells(terminal.text)))
        ((number, pixels),) = terminal.screen.images.items()
        columns, rows = terminal.screen.placements[number]
        assert (pixels.width, pixels.height) == (columns * CELL[0], rows * CELL[1])
        corners = [(0, 0), (columns - 1, 0), (0, rows - 1), (columns - 1, rows - 1)]
        assert [at(pixels, x * CELL[0], y * CELL[1]) for x, y in corners] == [RED, GREEN, BLUE, WHITE]
        expected = {(number, row, column) for row in range(rows) for column in range(columns)}
        terminal.until(lambda: set(placeholder_cells(terminal.text)) == expected)
        terminal.press(b"\x1b[F")  # away from it, and back
        terminal.listen(0.5)
        terminal.press(b"\x1b[H")
        terminal.listen(1.0)
        assert terminal.screen.sent == [number]
        assert terminal.leave() == 0
        assert terminal.screen.images == {}
        assert terminal.screen.sent == [number]


def test_a_picture_is_sent_again_after_a_stop_and_freed_with_its_chat(home):
    with AnsweringTerminal(home) as terminal:
        terminal.go_to_the_image()
        terminal.until(lambda: len(terminal.screen.sent) == 1)
        app = psutil.Process(terminal.pid)
        app.send_signal(signal.SIGTSTP)
        terminal.until(lambda: app.status() == psutil.STATUS_STOPPED)
        app.send_signal(signal.SIGCONT)
        terminal.until(lambda: len(terminal.screen.sent) == 2)
        assert list(terminal.screen.images) == terminal.screen.sent[1:]
        terminal.press(b"\x1b")
        terminal.listen(0.3)
        terminal.press(b"\x0e")
        terminal.until(lambda: terminal.screen.images == {})
        assert terminal.leave() == 0


def at(pixels, x, y):
    start = 3 * (y * pixels.width + x)
    return tuple(pixels.rgb[start : start + 3])


def test_larger_letters_take_a_sharper_picture(home):
    with AnsweringTerminal(home) as terminal:
        terminal.go_to_the_image()
        terminal.until(lambda: len(terminal.screen.images) == 1)
        terminal.set_cell_size(20, 40)
        terminal.until(lambda: len(terminal.screen.sent) == 2)
        (pixels,) = terminal.screen.images.values()
        assert (pixels.width, pixels.height) == (640, 320)  # its own size, which is less than the cells now


def test_a_late_answer_sharpens_what_is_shown(home):
    with AnsweringTerminal(home, answers=False) as terminal:
        terminal.go_to_the_image()
        assert terminal.screen.queries == 0
        terminal.answer()
        terminal.until(lambda: bool(placeholder_cells(terminal.text)))
        assert len(terminal.screen.images) == 1
        assert b"kitty(" not in terminal.raw  # not taken for keys
        assert terminal.leave() == 0


@pytest.mark.parametrize("why", ["silence", "tmux", "setting", "no colour"])
def test_where_there_are_no_pictures_nothing_is_sent(home, why):
    if why == "setting":
        with (home / "config" / "settings.toml").open("a") as file:
            file.write('pictures = "blocks"\n')
    variables = {"tmux": {"TMUX": "/tmp/tmux,1,0"}, "no colour": {"NO_COLOR": "1"}}.get(why, {})
    with AnsweringTerminal(home, answers=why != "silence", **variables) as terminal:
        terminal.go_to_the_image()
        terminal.listen(0.5)
        assert (ASKED_NAME in terminal.raw) == (why == "silence")
        assert b"\x1b_G" not in terminal.raw
        assert placeholder_cells(terminal.text) == []
        assert terminal.leave() == 0
