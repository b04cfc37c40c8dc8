"""Pictures in the terminal, shown by means of the Unicode placeholders in Kitty's graphics protocol.

A picture is sent once, along with a number. Cells that show it contain the placeholder U+10EEEE, with
diacritics for the row and column, in a colour that encodes the number. They scroll, and are covered and
clipped, like any text: https://sw.kovidgoyal.net/kitty/graphics-protocol/#unicode-placeholders. Ghostty
supports this too.

Sixel and iTerm2 images are part of the screen instead: drawing over them leaves a hole, and the whole picture
must be sent again for each scrolled line. In Sixel, 600 x 400 pixels take up 450 KB, and it takes 160 ms to
encode them and 60 ms to draw them in xterm.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

if TYPE_CHECKING:
    from edgechat.base.images.image import Pixels
    from edgechat.settings.fields import PictureMode


ASK_NAME = "\x1b[>q"
"""Request for the terminal's name and version (XTVERSION)."""
ASK_SUPPORT = "\x1b_Gi=1,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
"""Query whether a one-pixel picture can be shown. Terminals without the protocol may print it."""
ABORT = "\x1b_Gm=0,q=2;\x1b\\"
"""Sequence that aborts the transmission of a picture."""

_PLACEHOLDER = "\U0010eeee"
_CHUNK = 4096
"""Maximum number of base64 characters in one escape sequence."""
_DIACRITICS = (
    "\u0305\u030d\u030e\u0310\u0312\u033d\u033e\u033f\u0346\u034a\u034b\u034c\u0350\u0351\u0352\u0357"
    "\u035b\u0363\u0364\u0365\u0366\u0367\u0368\u0369\u036a\u036b\u036c\u036d\u036e\u036f\u0483\u0484"
    "\u0485\u0486\u0487\u0592\u0593\u0594\u0595\u0597\u0598\u0599\u059c\u059d\u059e\u059f\u05a0\u05a1"
    "\u05a8\u05a9\u05ab\u05ac\u05af\u05c4\u0610\u0611\u0612\u0613\u0614\u0615\u0616\u0617\u0657\u0658"
)
"""Combining marks for numbers from 0 up, taken from the start of Kitty's rowcolumn-diacritics.txt."""
MOST_CELLS = len(_DIACRITICS)
"""Maximum number of rows, and of columns, in a picture."""
_LEVELS = (0, 95, 135, 175, 215, 255)
"""Levels of green and blue in the 256-colour palette."""
_HUES = len(_LEVELS) ** 2 - 1
"""Number of palette colours without red, not counting black. Conversion to 256 colours preserves them."""
_NAMES = re.compile(r"\x1bP>\|(kitty|ghostty)[ (](\d{1,6})\.(\d{1,6})")
_FIRST_VERSIONS = {"kitty": (0, 28), "ghostty": (1, 0)}
_REPLY = re.compile(r"\x1b_G(?:[A-Za-z]=\d+,)*i=(\d{1,10})(?:,[A-Za-z]=\d+)*;(.*)", re.S)


@dataclass(frozen=True, slots=True)
class PictureNumber:
    """A picture's number in the terminal: the colour of its cells, and a high byte encoded as a diacritic."""

    colour: Color
    high: int

    @classmethod
    def of(cls, n: int, *, start: int, colours: int) -> PictureNumber:
        """Return the number for picture `n`, counted from 0.

        start: an offset that differs between programs in the same window.
        colours: the number of colours in the terminal. With only 256, `colour` is the palette entry that
        Textual would use for the RGB colour.
        """
        green, blue = divmod(1 + n % _HUES, len(_LEVELS))
        colour = (
            Color.from_rgb(0, _LEVELS[green], _LEVELS[blue])
            if colours > 256
            else Color.from_ansi(16 + 6 * green + blue)
        )
        return cls(colour, 1 + (start + n // _HUES) % (MOST_CELLS - 1))

    @property
    def value(self) -> int:
        """The number as written in escape sequences."""
        low = self.colour.number
        if low is None:
            red, green, blue = self.colour.get_truecolor()
            low = red << 16 | green << 8 | blue
        return self.high << 24 | low


def shows_placeholders(name: str) -> bool:
    """Return whether a terminal that gave this answer to ASK_NAME shows placeholders.

    Other terminals (Konsole, WezTerm) support the protocol without placeholders, and can be told apart only
    by name.
    """
    match = _NAMES.match(name)
    return match is not None and (int(match[2]), int(match[3])) >= _FIRST_VERSIONS[match[1]]


def is_multiplexer(name: str) -> bool:
    """Return whether the answer comes from a multiplexer and not from a terminal."""
    return re.match(r"\x1bP>\|(tmux|screen)", name) is not None


def answer_about(reply: str) -> tuple[int, str] | None:
    """Return a picture's number and status ('OK' or an error), or None for another kind of reply."""
    match = _REPLY.match(reply)
    return None if match is None else (int(match[1]), match[2])


def transmission(number: PictureNumber, pixels: Pixels, columns: int, rows: int) -> Iterator[str]:
    """Yield the escape sequences that send a picture scaled to `columns` x `rows` cells.

    No other graphics sequences may come between them.
    """
    data = base64.b64encode(zlib.compress(pixels.rgb, 1)).decode()
    keys = f"a=T,U=1,i={number.value},c={columns},r={rows},f=24,s={pixels.width},v={pixels.height},o=z,t=d,"
    for start in range(0, len(data), _CHUNK):
        more = int(start + _CHUNK < len(data))
        yield f"\x1b_G{keys}m={more},q=1;{data[start : start + _CHUNK]}\x1b\\"
        keys = ""


def deletion(number: PictureNumber) -> str:
    """Return the escape sequence that frees a picture."""
    return f"\x1b_Ga=d,d=I,i={number.value},q=2;\x1b\\"


def placeholders(number: PictureNumber, columns: int, rows: int) -> tuple[Strip, ...]:
    """Return the cells that show a picture."""
    style = Style(color=number.colour)
    high = _DIACRITICS[number.high]
    return tuple(
        Strip(
            [
                Segment(
                    "".join(
                        f"{_PLACEHOLDER}{_DIACRITICS[row]}{_DIACRITICS[column]}{high}"
                        for column in range(columns)
                    ),
                    style,
                )
            ],
            columns,
        )
        for row in range(rows)
    )


_PARTS = 8
"""Number of escape sequences written at once, 33 KB in total."""
_MOST_PIXELS = 1 << 20
"""Maximum number of pixels in a picture (3 MB before compression)."""
_USUAL_CELL = (10, 20)
"""A cell's size in pixels, assumed if the terminal does not report it."""


class PictureKey(NamedTuple):
    """A picture and its size in cells."""

    digest: str
    columns: int
    rows: int


@runtime_checkable
class PictureOutput(Protocol):
    """The driver methods needed for pictures."""

    @property
    def cell_size(self) -> tuple[int, int] | None: ...

    def write(self, data: str) -> None: ...

    async def drained(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class SentPicture:
    """A picture in the terminal's memory."""

    number: PictureNumber
    lines: tuple[Strip, ...]


class TerminalPictures:
    """Sends pictures to the terminal, one at a time, and frees them. Runs in the app's event loop.

    It asks for the terminal's name and then, if terminals with that name show placeholders, whether
    pictures can be shown now. Nothing waits for the answers; until they arrive, there are no pictures.
    """

    def __init__(self, output: PictureOutput, colours: int, on_change: Callable[[], None]) -> None:
        """colours: the number available. on_change: called when all pictures must be sent again."""
        self._output = output
        self._colours = colours
        self._on_change = on_change
        self._mode: PictureMode = "blocks"
        self._state: Literal["new", "asked for its name", "asked for support", "ready", "unable"] = "new"
        self._cell_size = output.cell_size
        self._sent: dict[PictureKey, SentPicture] = {}
        self._sending: PictureNumber | None = None
        self._freed: list[PictureNumber] = []
        """Pictures to free once the current transmission ends."""
        self._lock = asyncio.Lock()
        self._counter = count()
        self._start = random.randrange(MOST_CELLS)
        if colours < 256 or "TMUX" in os.environ or "STY" in os.environ:
            self._state = "unable"

    @property
    def is_ready(self) -> bool:
        return self._state == "ready" and self._mode != "blocks"

    def use(self, mode: PictureMode) -> None:
        """Apply the setting, and query the terminal if needed."""
        if mode == self._mode:
            return
        was_ready, self._mode = self.is_ready, mode
        if mode != "blocks" and self._state != "unable" and not was_ready:
            self._state = "asked for its name"
            self._output.write(ASK_NAME)
        if was_ready and not self.is_ready:
            self.forget()

    def take(self, reply: str) -> None:
        answer = answer_about(reply)
        if answer is None:
            if self._state == "asked for its name" and self._is_suitable(reply):
                self._state = "asked for support"
                self._output.write(ASK_SUPPORT)
        elif self._state == "asked for support":
            self._state = "ready" if answer[1] == "OK" else "unable"
            if self.is_ready:
                self._on_change()
        elif self._state == "ready" and answer[1] != "OK" and self._is_ours(answer[0]):
            self._state = "unable"
            self.forget()

    def _is_suitable(self, name: str) -> bool:
        return shows_placeholders(name) or (self._mode == "kitty" and not is_multiplexer(name))

    def _is_ours(self, value: int) -> bool:
        numbers = [picture.number for picture in self._sent.values()]
        return any(number.value == value for number in (*numbers, self._sending) if number is not None)

    def pixels_of(self, key: PictureKey) -> tuple[int, int]:
        """Return the maximum width and height of a picture, in pixels."""
        width, height = self._cell_size or _USUAL_CELL
        width, height = width * key.columns, height * key.rows
        scale = min(1.0, (_MOST_PIXELS / (width * height)) ** 0.5)
        return max(1, int(scale * width)), max(1, int(scale * height))

    def lines_of(self, key: PictureKey) -> tuple[Strip, ...]:
        """Return the cells that show a picture; empty if the terminal does not have it."""
        picture = self._sent.get(key)
        return picture.lines if picture is not None else ()

    async def send(self, key: PictureKey, pixels: Pixels) -> tuple[Strip, ...]:
        """Send a picture unless the terminal already has it, and return its cells; empty on failure."""
        async with self._lock:
            if not self.is_ready or max(key.columns, key.rows) > MOST_CELLS:
                return ()
            if key not in self._sent:
                n = next(self._counter)
                number = PictureNumber.of(n, start=self._start, colours=self._colours)
                if not await self._transmit(number, key, pixels):
                    return ()
                self._sent[key] = SentPicture(number, placeholders(number, key.columns, key.rows))
            return self._sent[key].lines

    async def _transmit(self, number: PictureNumber, key: PictureKey, pixels: Pixels) -> bool:
        parts = await asyncio.to_thread(list, transmission(number, pixels, key.columns, key.rows))
        if not self.is_ready:
            return False
        self._sending = number
        for at in range(0, len(parts), _PARTS):
            drained = await self._output.drained()
            if self._sending is not number:  # aborted
                return False
            if not drained:
                self._sending = None
                return False
            self._output.write("".join(parts[at : at + _PARTS]))
        self._sending = None
        freed, self._freed = self._freed, []
        for other in freed:
            self._output.write(deletion(other))
        return True

    def keep(self, keys: Collection[PictureKey], *, spare: int = 0) -> None:
        """Free all pictures except these and the `spare` others sent most recently."""
        others = [key for key in self._sent if key not in keys]
        for key in others[: max(0, len(others) - spare)]:
            number = self._sent.pop(key).number
            if self._sending is None:
                self._output.write(deletion(number))
            else:
                self._freed.append(number)

    def fit(self) -> None:
        """Have all pictures sent again if the cell size has changed, for example because of a larger font."""
        size, self._cell_size = self._cell_size, self._output.cell_size
        if size != self._cell_size:
            self.forget()

    def forget(self) -> None:
        """Free all pictures, and have the visible ones requested again.

        The terminal drops pictures itself when the app is suspended and leaves the alternate screen.
        """
        self._free_all()
        self._on_change()

    def close(self) -> None:
        """Free all pictures and send no more."""
        self._state = "unable"
        self._free_all()

    def _free_all(self) -> None:
        sequences = [deletion(picture.number) for picture in self._sent.values()]
        sequences += map(deletion, self._freed)
        if self._sending is not None:
            sequences = [ABORT, deletion(self._sending), *sequences]
        self._sent, self._freed, self._sending = {}, [], None
        if sequences:
            self._output.write("".join(sequences))
