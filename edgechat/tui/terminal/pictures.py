"""Pictures in the terminal's own memory: whether it can show them, and which ones it has."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from textual.strip import Strip

from edgechat.tui.terminal.graphics import (
    ABORT,
    ASK_NAME,
    ASK_SUPPORT,
    MOST_CELLS,
    PictureNumber,
    answer_about,
    deletion,
    is_multiplexer,
    placeholders,
    shows_placeholders,
    transmission,
)

if TYPE_CHECKING:
    from edgechat.base.images.image import Pixels
    from edgechat.settings.fields import PictureMode

_PARTS = 8
"""Escape sequences that are written at once: 33 KB."""
_MOST_PIXELS = 1 << 20
"""Of one picture: 3 MB, before they are compressed."""
_USUAL_CELL = (10, 20)
"""Pixels of a cell, if the terminal does not tell."""


class PictureKey(NamedTuple):
    """A picture in one size, in cells."""

    digest: str
    columns: int
    rows: int


@runtime_checkable
class PictureOutput(Protocol):
    """What pictures need of the driver."""

    @property
    def cell_size(self) -> tuple[int, int] | None: ...

    def write(self, data: str) -> None: ...

    async def drained(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class SentPicture:
    """A picture that the terminal has."""

    number: PictureNumber
    lines: tuple[Strip, ...]


class TerminalPictures:
    """Sends pictures to the terminal, one after the other, and frees them. Runs in the app's event loop.

    The terminal is asked for its name, and then, if that is of one that shows placeholders, whether it shows
    pictures now. Nothing waits for the answers: until they are there, there are no pictures.
    """

    def __init__(self, output: PictureOutput, colours: int, on_change: Callable[[], None]) -> None:
        """colours: of the terminal. on_change: is called when all pictures are to be shown anew."""
        self._output = output
        self._colours = colours
        self._on_change = on_change
        self._mode: PictureMode = "blocks"
        self._state: Literal["new", "asked for its name", "asked for support", "ready", "unable"] = "new"
        self._cell_size = output.cell_size
        self._sent: dict[PictureKey, SentPicture] = {}
        self._sending: PictureNumber | None = None
        self._freed: list[PictureNumber] = []
        """Those that are freed as soon as the one that is being sent has been."""
        self._lock = asyncio.Lock()
        self._counter = count()
        self._start = random.randrange(MOST_CELLS)
        if colours < 256 or "TMUX" in os.environ or "STY" in os.environ:
            self._state = "unable"

    @property
    def is_ready(self) -> bool:
        return self._state == "ready" and self._mode != "blocks"

    def use(self, mode: PictureMode) -> None:
        """Change the setting, and ask the terminal if it matters now."""
        if mode == self._mode:
            return
        was_ready, self._mode = self.is_ready, mode
        if mode != "blocks" and self._state != "unable" and not was_ready:
            self._state = "asked for its name"
            self._output.write(ASK_NAME)
        if was_ready and not self.is_ready:
            self.forget()

    def take(self, reply: str) -> None:
        """Take a reply of the terminal."""
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
        """Return the width and height that a picture fills at most, in pixels."""
        width, height = self._cell_size or _USUAL_CELL
        width, height = width * key.columns, height * key.rows
        scale = min(1.0, (_MOST_PIXELS / (width * height)) ** 0.5)
        return max(1, int(scale * width)), max(1, int(scale * height))

    def lines_of(self, key: PictureKey) -> tuple[Strip, ...]:
        """Return the cells that show a picture; nothing if the terminal does not have it."""
        picture = self._sent.get(key)
        return picture.lines if picture is not None else ()

    async def send(self, key: PictureKey, pixels: Pixels) -> tuple[Strip, ...]:
        """Send a picture, unless the terminal has it, and return its cells; nothing if that was in vain."""
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
            if self._sending is not number:  # it has been aborted
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
        """Free all other pictures, except for so many of them that were sent last."""
        others = [key for key in self._sent if key not in keys]
        for key in others[: max(0, len(others) - spare)]:
            number = self._sent.pop(key).number
            if self._sending is None:
                self._output.write(deletion(number))
            else:
                self._freed.append(number)

    def fit(self) -> None:
        """Begin anew if the cells have another size, as with larger letters."""
        size, self._cell_size = self._cell_size, self._output.cell_size
        if size != self._cell_size:
            self.forget()

    def forget(self) -> None:
        """Free all pictures, and let those that are seen be asked for anew.

        The terminal itself drops them when the app leaves its screen, as it does to be suspended.
        """
        self._free_all()
        self._on_change()

    def close(self) -> None:
        """Free all pictures, for good."""
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
