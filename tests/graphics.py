"""A terminal's side of Kitty's graphics protocol, written from the specification alone.

https://sw.kovidgoyal.net/kitty/graphics-protocol/
"""

from __future__ import annotations

import base64
import re
import unicodedata
import zlib
from dataclasses import dataclass, field
from functools import cache

from edgechat.base.images.image import Pixels

_COMMAND = re.compile(r"\x1b_G([^;\x1b]*)(?:;([^\x1b]*))?\x1b\\")
_CELL = re.compile("\U0010eeee(.)(.)(.)", re.S)
_COLOUR = re.compile(r"38;2;(\d+);(\d+);(\d+)|38;5;(\d+)")
_TOKEN = re.compile(r"\x1b\[([0-9;]*)m|\U0010eeee(?:[^\x00-\x7f]){3}", re.S)


@dataclass
class KittyScreen:
    """The images that a terminal holds, and its responses, computed from the bytes sent to it."""

    images: dict[int, Pixels] = field(default_factory=dict)
    placements: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Columns and rows of virtual placements, by image id."""
    sent: list[int] = field(default_factory=list)
    """Ids of all images that have ever been complete."""
    queries: int = 0
    longest: int = 0
    """Most characters of data in one command."""
    _loading: dict[str, str] | None = None
    _data: str = ""

    def feed(self, text: str) -> None:
        """Execute the commands in a program's output. Raises AssertionError if one is not allowed."""
        for keys, data in _COMMAND.findall(text):
            self.longest = max(self.longest, len(data))
            self._obey(dict(pair.split("=") for pair in keys.split(",")), data)

    def _obey(self, keys: dict[str, str], data: str) -> None:
        if self._loading is not None:
            assert set(keys) <= {"m", "q"}, "nothing may come between the chunks of an image"
            self._load(keys, data)
        elif keys.get("a") == "q":
            self.queries += 1
        elif keys.get("a") == "d":
            assert keys["d"] == "I"
            self.images.pop(int(keys["i"]), None)
            self.placements.pop(int(keys["i"]), None)
        else:
            assert keys["a"] == "T"
            self._loading, self._data = keys, ""
            self._load(keys, data)

    def _load(self, keys: dict[str, str], data: str) -> None:
        assert self._loading is not None
        self._data += data
        if keys.get("m") == "1":
            assert len(data) % 4 == 0
            return
        about, self._loading = self._loading, None
        try:
            pixels = zlib.decompress(base64.b64decode(self._data, validate=True))
        except zlib.error:
            return  # truncated: an error that gets no response (q=2)
        assert (about["f"], about["o"], about["U"], about.get("t", "d")) == ("24", "z", "1", "d")
        width, height = int(about["s"]), int(about["v"])
        assert len(pixels) == 3 * width * height
        number = int(about["i"])
        self.images[number] = Pixels(width, height, pixels)
        self.placements[number] = int(about["c"]), int(about["r"])
        self.sent.append(number)


def placeholder_cells(text: str) -> list[tuple[int, int, int]]:
    """Return the image id, row and column of each placeholder in a program's output."""
    cells, low = [], 0
    for match in _TOKEN.finditer(text):
        if match[1] is not None:
            colour = _COLOUR.search(match[1])
            if colour is not None:
                red, green, blue, palette = (int(part or 0) for part in colour.groups())
                low = palette or (red << 16 | green << 8 | blue)
        elif (cell := _CELL.fullmatch(match[0])) is not None:
            row, column, high = (number_of(mark) for mark in cell.groups())
            cells.append((high << 24 | low, row, column))
    return cells


def number_of(diacritic: str) -> int:
    """Return the number of a diacritic: its position in the specification's list."""
    return numbered_diacritics().index(diacritic)


@cache
def numbered_diacritics() -> list[str]:
    """Return the start of the list, by its rule: marks above (class 230) unchanged by normalization."""
    letters = [chr(code) for code in range(0x30000)]  # no code point above this is composed
    splits = [unicodedata.decomposition(letter) for letter in letters]
    composed = {part for split in splits if not split.startswith("<") for part in split.split()}
    return [
        letter
        for letter in letters[:0x0659]
        if unicodedata.combining(letter) == 230
        and not unicodedata.decomposition(letter)
        and f"{ord(letter):04X}" not in composed
    ]
