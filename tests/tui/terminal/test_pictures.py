"""Which pictures a terminal is sent, and when it is asked, with a terminal that a test answers for."""

from __future__ import annotations

import asyncio

import pytest

from edgechat.base.images.image import Pixels
from edgechat.tui.terminal.pictures import ASK_NAME, ASK_SUPPORT, PictureKey, TerminalPictures
from tests.graphics import KittyScreen
from tests.tui.terminal.test_graphics import noise

KITTY = "\x1bP>|kitty(0.41.1)"
KEY = PictureKey("a" * 32, 8, 4)


class Output:
    """A terminal's end of the line."""

    cell_size: tuple[int, int] | None = (10, 20)

    def __init__(self):
        self.text = ""
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_open = True

    def write(self, data):
        self.text += data

    async def drained(self):
        await self.gate.wait()
        return self.is_open

    @property
    def screen(self):
        screen = KittyScreen()
        screen.feed(self.text)
        return screen


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def output():
    return Output()


def pictures_in(output, *, mode="auto", colours=1 << 24):
    pictures = TerminalPictures(output, colours, lambda: None)
    pictures.use(mode)
    return pictures


def ready(output):
    pictures = pictures_in(output)
    pictures.take(KITTY)
    pictures.take("\x1b_Gi=1;OK")
    assert pictures.is_ready
    return pictures


async def test_the_terminal_is_asked_for_its_name_and_only_then_for_pictures(output):
    pictures = pictures_in(output)
    assert output.text == ASK_NAME
    pictures.take(KITTY)
    assert output.text == ASK_NAME + ASK_SUPPORT
    assert not pictures.is_ready
    pictures.take("\x1b_Gi=1;OK")
    assert pictures.is_ready


@pytest.mark.parametrize(
    ("mode", "replies"),
    [
        ("auto", ["\x1bP>|Konsole 24.12.0", "\x1b_Gi=1;OK"]),
        ("auto", [KITTY, "\x1b_Gi=1;ENOSYS:no"]),
        ("auto", ["\x1b_Gi=1;OK"]),
        ("auto", [KITTY, KITTY]),
        ("kitty", ["\x1bP>|tmux 3.4", "\x1b_Gi=1;OK"]),
        ("blocks", [KITTY, "\x1b_Gi=1;OK"]),
    ],
)
async def test_other_terminals_get_no_pictures(output, mode, replies):
    pictures = pictures_in(output, mode=mode)
    for reply in replies:
        pictures.take(reply)
    assert not pictures.is_ready
    assert await pictures.send(KEY, noise(80, 80)) == ()
    assert output.screen.sent == []


@pytest.mark.parametrize("variable", ["TMUX", "STY"])
async def test_inside_a_multiplexer_nothing_is_asked(output, variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    pictures_in(output, mode="kitty").take(KITTY)
    assert output.text == ""


async def test_with_too_few_colours_nothing_is_asked(output):
    pictures_in(output, colours=16)
    assert output.text == ""


async def test_the_setting_can_trust_an_unknown_terminal(output):
    pictures = pictures_in(output, mode="kitty")
    pictures.take("\x1bP>|newterm 1")
    pictures.take("\x1b_Gi=1;OK")
    assert pictures.is_ready


async def test_a_picture_is_sent_once_and_freed(output):
    pictures, pixels = ready(output), noise(80, 80)
    lines = await pictures.send(KEY, pixels)
    assert len(lines) == KEY.rows
    assert list(output.screen.images.values()) == [pixels]
    before = output.text
    assert await pictures.send(KEY, pixels) == lines == pictures.lines_of(KEY)
    assert output.text == before
    other = KEY._replace(digest="b")
    await pictures.send(other, noise(10, 10))
    pictures.keep([other])
    assert list(output.screen.images.values()) == [noise(10, 10)]
    assert pictures.lines_of(KEY) == ()
    pictures.close()
    assert output.screen.images == {}
    assert await pictures.send(KEY, pixels) == ()


async def test_a_few_pictures_that_are_not_seen_any_more_may_stay(output):
    pictures = ready(output)
    keys = [KEY._replace(digest=letter) for letter in "abcde"]
    for key in keys:
        await pictures.send(key, noise(2, 2))
    pictures.keep([keys[0]], spare=2)
    assert [key.digest for key in keys if pictures.lines_of(key)] == ["a", "d", "e"]
    assert len(output.screen.images) == 3
    pictures.keep([keys[0], keys[4]])
    assert len(output.screen.images) == 2


async def test_the_size_in_pixels_is_that_of_the_cells_and_bounded(output):
    pictures = ready(output)
    assert pictures.pixels_of(KEY) == (80, 80)
    output.cell_size = None
    pictures.fit()
    assert pictures.pixels_of(KEY) == (80, 80)
    output.cell_size = (200, 400)
    pictures.fit()
    width, height = pictures.pixels_of(PictureKey("a", 60, 20))
    assert 0.9 * 2**20 < width * height <= 2**20
    assert width / height == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("way", ["forget", "close", "blocks"])
async def test_a_picture_that_is_no_longer_wanted_in_mid_transmission_is_cut_off(output, way):
    pictures, begun = ready(output), asyncio.Event()
    sending = asyncio.create_task(pictures.send(KEY, noise(200, 200)))

    async def one_at_a_time():
        output.gate.clear()
        begun.set()
        await output.gate.wait()
        return True

    output.drained = one_at_a_time
    await begun.wait()
    output.gate.set()  # the first part goes out
    begun.clear()
    await begun.wait()
    if way == "blocks":
        pictures.use("blocks")
    else:
        getattr(pictures, way)()
    output.gate.set()
    assert await sending == ()
    assert "m=1" in output.text
    assert "m=0,q=2" in output.text
    assert (output.screen.images, output.screen._loading) == ({}, None)


async def test_a_suspended_app_sends_nothing(output):
    pictures = ready(output)
    output.is_open = False
    assert await pictures.send(KEY, noise(80, 80)) == ()
    assert output.screen.sent == []


async def test_what_is_freed_in_mid_transmission_waits_for_its_end(output):
    pictures = ready(output)
    await pictures.send(KEY, noise(10, 10))
    output.gate.clear()
    sending = asyncio.create_task(pictures.send(KEY._replace(digest="b"), noise(200, 200)))
    while pictures._sending is None:
        await asyncio.sleep(0.001)
    pictures.keep([])
    output.gate.set()
    await sending
    assert list(output.screen.images.values()) == [noise(200, 200)]  # KittyScreen checks the order


async def test_a_terminal_that_refuses_a_picture_gets_no_more(output):
    shown_anew = []
    pictures = TerminalPictures(output, 1 << 24, lambda: shown_anew.append(True))
    pictures.use("auto")
    for reply in (KITTY, "\x1b_Gi=1;OK"):
        pictures.take(reply)
    assert shown_anew == [True]
    await pictures.send(KEY, noise(80, 80))
    (number,) = output.screen.images
    pictures.take(f"\x1b_Gi={number + 1};ENOSPC:of another program")
    assert pictures.is_ready
    pictures.take(f"\x1b_Gi={number};ENOSPC:no room")
    assert (pictures.is_ready, shown_anew) == (False, [True, True])
    assert output.screen.images == {}


async def test_cells_of_another_size_take_other_pictures(output):
    pictures = ready(output)
    await pictures.send(KEY, noise(80, 80))
    pictures.fit()
    assert pictures.lines_of(KEY)
    output.cell_size = (20, 40)
    pictures.fit()
    assert pictures.lines_of(KEY) == ()
    assert output.screen.images == {}
    assert pictures.pixels_of(KEY) == (160, 160)


async def test_too_many_cells_are_no_picture(output):
    assert await ready(output).send(PictureKey("a", 65, 1), Pixels(1, 1, b"abc")) == ()
