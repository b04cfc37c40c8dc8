"""Reading the terminal: whatever bytes come from it, the app goes on."""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from edgechat.base.text import is_text

_LOOK = 0.1
"""Seconds between two looks whether a key that may begin a sequence (Escape) stands for itself."""
_PIECE = 1 << 14
_MOST_PASTED = 1 << 25
"""Characters of one paste that are kept."""
_MOST_CELLS = 300_000
"""Of a terminal that says how large it is: more than a wall of tiny letters has takes minutes to lay out."""


class TerminalInput:
    """Makes events of what a terminal sends.

    Bytes that are no UTF-8 become �, a sequence that Textual's parser fails at is dropped, and what is pasted
    is text to its end: Textual's parser takes what follows an ESC in it for keys, Enter among them.
    """

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._parser = XTermParser()
        self._last = ""
        """So many characters as begin a paste."""
        self._pasted: list[str] | None = None
        self._tail = ""
        """The last characters of what is pasted, which may begin its end."""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield what these bytes mean."""
        text = self._decode(data)
        at = 0
        while at < len(text):
            if self._pasted is not None:
                at = yield from self._paste(self._pasted, text, at)
                continue
            self._last = (self._last + text[at])[-len(BRACKETED_PASTE_START) :]
            if self._last == BRACKETED_PASTE_START:
                self._renew()  # it waits for the end of this sequence
                self._pasted = []
            else:
                yield from self._parsed(partial(self._parser.feed, text[at]))
            at += 1

    def tick(self) -> Iterator[Message]:
        """Yield what the silence since the last bytes means."""
        yield from self._parsed(self._parser.tick)

    def _paste(self, pasted: list[str], text: str, at: int) -> Generator[Message, None, int]:
        """Take what is pasted, and return where it ends."""
        look, before = self._tail + text[at:], len(self._tail)
        end = look.find(BRACKETED_PASTE_END)
        cut = end if end >= 0 else max(0, len(look) - len(BRACKETED_PASTE_END) + 1)
        if sum(map(len, pasted)) < _MOST_PASTED:
            pasted.append(look[:cut])
        if end < 0:
            self._tail = look[cut:]
            return len(text)
        self._pasted, self._tail, self._last = None, "", ""
        yield events.Paste("".join(pasted).replace("\0", ""))
        return at + end + len(BRACKETED_PASTE_END) - before

    def _parsed(self, parse: Callable[[], Iterable[Message]]) -> Iterator[Message]:
        parser = self._parser
        size = parser.terminal_size, parser.terminal_pixel_size
        try:
            for message in parse():
                if isinstance(message, events.Key) and not is_text(message.character or ""):
                    continue
                if isinstance(message, events.Resize) and not _is_sound(message):
                    parser.terminal_size, parser.terminal_pixel_size = size
                    continue
                yield message
        except Exception:  # its own, of a number that is none or too large
            self._renew()

    def _renew(self) -> None:
        """Begin anew, in a terminal of the same size."""
        before, self._parser = self._parser, XTermParser()
        self._parser.mouse_pixels = before.mouse_pixels
        self._parser.terminal_size = before.terminal_size
        self._parser.terminal_pixel_size = before.terminal_pixel_size


def _is_sound(message: events.Resize) -> bool:
    return 0 < message.size.width * message.size.height <= _MOST_CELLS


class TerminalDriver(LinuxDriver):
    """Textual's, with `TerminalInput` between the terminal and the app."""

    def run_input_thread(self) -> None:
        """See Textual."""
        typed = TerminalInput()
        with selectors.SelectSelector() as terminal:
            terminal.register(self.fileno, selectors.EVENT_READ)
            while True:
                done = self.exit_event.is_set()
                if terminal.select(_LOOK):
                    data = os.read(self.fileno, _PIECE)
                    for message in typed.feed(data):
                        self.process_message(message)
                    if not data:  # its end, which is there to be read for ever
                        self.exit_event.wait(_LOOK)
                for message in typed.tick():
                    self.process_message(message)
                if done:  # what came meanwhile is not left to the shell
                    return
