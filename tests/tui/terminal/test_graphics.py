"""Kitty's graphics protocol: the bytes, and what a terminal makes of them."""

import base64
import random
import zlib

import pytest
from rich.color import ColorSystem
from rich.console import Console

from edgechat.base.images.image import Pixels
from edgechat.tui.terminal.pictures import (
    MOST_CELLS,
    PictureNumber,
    answer_about,
    deletion,
    is_multiplexer,
    placeholders,
    shows_placeholders,
    transmission,
)
from tests.graphics import KittyScreen, placeholder_cells

TRUE, PALETTE = 1 << 24, 256


def noise(width, height):
    return Pixels(width, height, random.Random(1).randbytes(3 * width * height))


def test_the_bytes_of_a_small_picture():
    number = PictureNumber.of(0, start=6, colours=TRUE)
    assert number.value == 7 << 24 | 95
    pixels = Pixels(2, 1, b"\xff\0\0\0\0\xff")
    data = base64.b64encode(zlib.compress(pixels.rgb, 1)).decode()
    assert list(transmission(number, pixels, 4, 2)) == [
        f"\x1b_Ga=T,U=1,i={number.value},c=4,r=2,f=24,s=2,v=1,o=z,t=d,m=0,q=1;{data}\x1b\\"
    ]
    assert deletion(number) == f"\x1b_Ga=d,d=I,i={number.value},q=2;\x1b\\"


def test_a_large_picture_arrives_whole_in_chunks_of_4096_letters():
    pixels, number = noise(300, 200), PictureNumber.of(3, start=0, colours=TRUE)
    screen, parts = KittyScreen(), list(transmission(number, pixels, 60, 20))
    for part in parts:
        screen.feed(part)
    assert screen.images == {number.value: pixels}
    assert screen.placements == {number.value: (60, 20)}
    found = (screen.longest, len(parts))
    assert found == (4096, -(-len(base64.b64encode(zlib.compress(pixels.rgb, 1))) // 4096))
    screen.feed(deletion(number))
    assert screen.images == screen.placements == {}


def drawn(strips, colours):
    system = "truecolor" if colours == TRUE else "256"
    console = Console(color_system=system, force_terminal=True)
    return "\n".join(strip.render(console) for strip in strips)


@pytest.mark.parametrize("colours", [TRUE, PALETTE])
def test_each_cell_says_which_part_of_which_picture_it_shows(colours):
    number = PictureNumber.of(40, start=61, colours=colours)
    lines = placeholders(number, 60, 20)
    cells = [(number.value, row, column) for row in range(20) for column in range(60)]
    assert placeholder_cells(drawn(lines, colours)) == cells
    assert [line.cell_length for line in lines] == [60] * 20
    cut = tuple(line.crop(7, 31) for line in lines[5:])
    expected = [cell for cell in cells if cell[1] >= 5 and 7 <= cell[2] < 31]
    assert placeholder_cells(drawn(cut, colours)) == expected
    assert drawn(placeholders(number, MOST_CELLS, MOST_CELLS), colours)


@pytest.mark.parametrize("colours", [TRUE, PALETTE])
def test_pictures_have_numbers_of_their_own(colours):
    numbers = [PictureNumber.of(n, start=5, colours=colours) for n in range(2000)]
    assert len({number.value for number in numbers}) == 2000
    assert all(0 < number.value < 1 << 32 for number in numbers)


def test_a_palette_of_256_colours_keeps_the_numbers_apart():
    """A theme makes true colours of all, of which Rich then makes those of the palette again."""
    for n in range(35):
        colour = PictureNumber.of(n, start=0, colours=TRUE).colour
        same = PictureNumber.of(n, start=0, colours=PALETTE).colour
        assert colour.downgrade(ColorSystem.EIGHT_BIT).number == same.number


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("kitty(0.28.0)", True),
        ("kitty(0.41.1)", True),
        ("kitty(1.0.0)", True),
        ("kitty(0.27.1)", False),
        ("ghostty 1.0.0", True),
        ("ghostty 1.2.3-main+abc", True),
        ("WezTerm 20240203-110809-5046fc22", False),
        ("Konsole 24.12.0", False),
        ("iTerm2 3.5.11", False),
        ("XTerm(379)", False),
        ("tmux 3.4", False),
        ("kitty", False),
        ("ghostty-web 1.0.0", False),
        ("notkitty(1.0.0)", False),
        ("", False),
    ],
)
def test_terminals_with_placeholders_are_known_by_name_and_version(name, shows):
    reply = f"\x1bP>|{name}"
    assert shows_placeholders(reply) == shows
    assert is_multiplexer(reply) == name.startswith("tmux")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("\x1b_Gi=7;OK", (7, "OK")),
        ("\x1b_Gi=4294967295;EINVAL:no", (4294967295, "EINVAL:no")),
        ("\x1b_GI=3,i=7,p=2;OK", (7, "OK")),
        ("\x1b_GOK", None),
        ("\x1b_Gi=99999999999;OK", None),
        ("\x1bP>|kitty(0.41.1)", None),
    ],
)
def test_answers_name_the_picture(reply, answer):
    assert answer_about(reply) == answer
