"""Terminal input that tolerates malformed bytes: keys, pastes, and replies from the terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import selectors
import struct
import termios
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from edgechat.base.text import is_text

_PASTE_START, _PASTE_END = "\x1b[200~", "\x1b[201~"
_STARTS = ("\x1bP>|", "\x1b_G")
_ENDS = ("\x1b\\", "\a")
_MOST_LETTERS = 512
_START_SECONDS = 0.05
"""Seconds to wait for the rest of a reply's prefix, which starts like Alt+Shift+P."""
_REPLY_SECONDS = 1.0
"""Seconds to wait for the next character before an incomplete reply is dropped."""


@dataclass
class TerminalReply(Message):
    r"""A string sent by the terminal, including its prefix but not its terminator: '\x1b_Gi=7;OK'."""

    text: str


class ReplyReader:
    """Extracts the terminal's replies from its input, character by character.

    ESC is passed on at once, since it may be a key. If it turns out to start a reply (`is_inside`), the key
    parser must be reset.
    """

    def __init__(self) -> None:
        self._held = ""
        """The characters of a reply, or possible reply, received so far, including its ESC."""
        self._at = 0.0
        """When the last of them arrived."""

    @property
    def is_inside(self) -> bool:
        return self._held.startswith(_STARTS)

    def feed(self, letter: str) -> str | TerminalReply:
        """Add a character; return the reply it completes, or the characters found not to be part of one."""
        before, self._held, self._at = self._held, self._held + letter, monotonic()
        if before.startswith(_STARTS):
            return self._go_on(letter)
        if len(self._held) > 1 and any(start.startswith(self._held) for start in _STARTS):
            return ""
        self._held = "\x1b" if letter == "\x1b" else ""
        return before[1:] + letter

    def _go_on(self, letter: str) -> str | TerminalReply:
        if self._held.endswith(_ENDS):
            text, self._held = self._held, ""
            return TerminalReply(text.removesuffix("\a").removesuffix("\x1b\\"))
        if self._held[-2] == "\x1b" != letter:  # another sequence has started
            self._held = "\x1b"
            return f"\x1b{self.feed(letter)}"
        if len(self._held) > _MOST_LETTERS:
            self._held = ""
        return ""

    def tick(self) -> str:
        """Return the characters that turn out, after a pause, not to be part of a reply."""
        waited = monotonic() - self._at
        if self.is_inside:
            self._held = self._held if waited < _REPLY_SECONDS else ""
            return ""
        if len(self._held) < 2 or waited < _START_SECONDS:
            return ""
        text, self._held = self._held[1:], ""
        return text


_TICK = 0.1
"""Seconds after which an ESC counts as the Escape key and not as the start of a sequence."""
_READ_BYTES = 1 << 14
_MOST_PASTED = 1 << 25
"""Maximum number of characters in one paste; the rest is dropped."""
_WAIT = 0.005
"""Seconds between checks of whether all output has been written."""
_MOST_CELLS = 300_000
"""Maximum plausible size of a terminal in cells; laying out a larger one would take minutes."""


class TerminalInput:
    """Turns the bytes that a terminal sends into events and replies.

    Bytes that are not UTF-8 become �, and sequences that crash Textual's parser are dropped. Everything up to
    a paste's end marker is text, whereas Textual's parser treats text after an ESC in a paste as keys,
    including Enter.
    """

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._parser = XTermParser()
        self._replies = ReplyReader()
        self._last = ""
        """The last characters received, up to the length of a paste's start marker."""
        self._pasted: list[str] | None = None
        self._tail = ""
        """The last characters of a paste, which may be part of its end marker."""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the events for these bytes."""
        text = self._decode(data)
        at = 0
        while at < len(text):
            if self._pasted is not None:
                at = yield from self._paste(self._pasted, text, at)
                continue
            self._last = (self._last + text[at])[-len(_PASTE_START) :]
            if self._last == _PASTE_START:
                self._reset_parser()  # it is waiting for the end of this sequence
                self._pasted = []
            else:
                yield from self._take(text[at])
            at += 1

    def _take(self, letter: str) -> Iterator[Message]:
        """Yield the reply or events completed by a character."""
        was_inside = self._replies.is_inside
        taken = self._replies.feed(letter)
        if isinstance(taken, TerminalReply):
            yield taken
        elif self._replies.is_inside and not was_inside:
            self._reset_parser()  # it has already received the ESC
        else:
            yield from self._keys(taken)

    def _keys(self, text: str) -> Iterator[Message]:
        for letter in text:
            yield from self._parse(partial(self._parser.feed, letter))

    def tick(self) -> Iterator[Message]:
        """Yield the events that are due after a pause in the input."""
        yield from self._keys(self._replies.tick())
        yield from self._parse(self._parser.tick)

    def _paste(self, pasted: list[str], text: str, at: int) -> Generator[Message, None, int]:
        """Collect pasted text, and yield it once complete; return the position in `text` where it ends."""
        rest, n_tail = self._tail + text[at:], len(self._tail)
        end = rest.find(_PASTE_END)
        cut = end if end >= 0 else max(0, len(rest) - len(_PASTE_END) + 1)
        if sum(map(len, pasted)) < _MOST_PASTED:
            pasted.append(rest[:cut])
        if end < 0:
            self._tail = rest[cut:]
            return len(text)
        self._pasted, self._tail, self._last = None, "", ""
        yield events.Paste("".join(pasted).replace("\0", ""))
        return at + end + len(_PASTE_END) - n_tail

    def _parse(self, parse: Callable[[], Iterable[Message]]) -> Iterator[Message]:
        parser = self._parser
        size = parser.terminal_size, parser.terminal_pixel_size
        try:
            for message in parse():
                if isinstance(message, events.Key) and not is_text(message.character or ""):
                    continue
                if isinstance(message, events.Resize) and not _is_plausible(message):
                    parser.terminal_size, parser.terminal_pixel_size = size
                    continue
                yield message
        except Exception:  # a bug in the parser, such as one caused by huge numbers
            self._reset_parser()

    def _reset_parser(self) -> None:
        old, self._parser = self._parser, XTermParser()
        self._parser.mouse_pixels = old.mouse_pixels
        self._parser.terminal_size = old.terminal_size
        self._parser.terminal_pixel_size = old.terminal_pixel_size


def _is_plausible(message: events.Resize) -> bool:
    return 0 < message.size.width * message.size.height <= _MOST_CELLS


class TerminalDriver(LinuxDriver):
    """Textual's Linux driver, with `TerminalInput` between the terminal and the app."""

    @property
    def cell_size(self) -> tuple[int, int] | None:
        """A cell's width and height in pixels; None if the terminal does not report them."""
        try:
            size = fcntl.ioctl(self.fileno, termios.TIOCGWINSZ, bytes(8))
        except OSError:
            return None
        rows, columns, width, height = struct.unpack("HHHH", size)
        return (width // columns, height // rows) if min(rows, columns) and width and height else None

    async def drained(self) -> bool:
        """Wait until all output has been written, so that a slow terminal can draw each frame.

        Returns False if the app is suspended and nothing is being written.
        """
        while (writer := self._writer_thread) is not None and writer.is_alive():
            if writer._queue.empty():
                return True
            await asyncio.sleep(_WAIT)
        return False

    def _sigtstp_application(self, *_: object) -> None:
        # Suspending here could deadlock: the interrupted code may hold a lock that this waits for.
        self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(super()._sigcont_application)

    def run_input_thread(self) -> None:
        terminal_input = TerminalInput()
        with selectors.SelectSelector() as terminal:
            terminal.register(self.fileno, selectors.EVENT_READ)
            while True:
                done = self.exit_event.is_set()
                if terminal.select(_TICK):
                    data = os.read(self.fileno, _READ_BYTES)
                    for message in terminal_input.feed(data):
                        self.process_message(message)
                    if not data:  # end of file: select would report it again and again
                        self.exit_event.wait(_TICK)
                for message in terminal_input.tick():
                    self.process_message(message)
                if done:  # the last bytes have been read, so the shell does not get them
                    return
