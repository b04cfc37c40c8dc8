"""From the bytes of tokens to text that can be shown: whole characters, no stop strings, thinking apart."""

from __future__ import annotations

import codecs
from enum import Enum

from edgechat.engine.thinking import Marks

Piece = tuple[str, bool]
"""Text, and whether it is thinking."""


class Where(Enum):
    """The part of the reply that the next character belongs to."""

    START = "start"
    THINKING = "thinking"
    BEFORE_ANSWER = "before answer"
    ANSWER = "answer"


class Reply:
    """The text of one reply as it grows.

    What could be the beginning of a mark or of a stop string is held back until it is decided, so nothing
    that was shown is ever taken back. Stop strings end the answer, not the thinking.
    """

    def __init__(
        self, stop: tuple[str, ...] = (), marks: Marks | None = None, *, thinking: bool = False
    ) -> None:
        """`thinking`: the prompt has opened the thought already."""
        self.stopped = False
        self._stop = tuple(text for text in stop if text)
        self._marks = marks
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if marks is None:
            self.where = Where.ANSWER
        else:
            self.where = Where.THINKING if thinking else Where.START

    @property
    def holds(self) -> bool:
        """Whether some text is held back."""
        return bool(self._held)

    def feed(self, piece: bytes) -> list[Piece]:
        """Take the bytes of one more token; return what can be shown now."""
        self._held += self._decoder.decode(piece)
        return self._drain(final=False)

    def finish(self) -> list[Piece]:
        """The generation is over: return what was held back."""
        self._held += self._decoder.decode(b"", final=True)
        return self._drain(final=True)

    def _drain(self, *, final: bool) -> list[Piece]:
        shown: list[Piece] = []
        while self._held and not self.stopped:
            before = (self.where, len(self._held))
            if self.where is Where.ANSWER:
                text = self._answer(final=final)
            elif self.where is Where.THINKING:
                text = self._thought(final=final)
            else:
                self._opening(final=final)
                text = ""
            if text:
                shown.append((text, before[0] is Where.THINKING))
            if before == (self.where, len(self._held)):
                break
        return shown

    def _opening(self, *, final: bool) -> None:
        """Before a thought or an answer: pass over white space and marks."""
        assert self._marks is not None
        self._held = self._held.lstrip()
        opening = self._marks.skip + ((self._marks.open,) if self.where is Where.START else ())
        for mark in opening:
            if self._held.startswith(mark):
                self._held = self._held[len(mark) :]
                if mark == self._marks.open:
                    self.where = Where.THINKING
                return
        undecided = any(mark.startswith(self._held) for mark in opening)
        if self._held and (final or not undecided):
            self.where = Where.ANSWER

    def _thought(self, *, final: bool) -> str:
        assert self._marks is not None
        close = self._marks.close
        at = self._held.find(close)
        if at >= 0:
            self.where = Where.BEFORE_ANSWER
            return self._take(at, drop=len(close))
        return self._take(len(self._held) - (0 if final else held_back(self._held, (close,))))

    def _answer(self, *, final: bool) -> str:
        found = [at for at in (self._held.find(text) for text in self._stop) if at >= 0]
        if found:
            self.stopped = True
            return self._take(min(found), drop=len(self._held))
        return self._take(len(self._held) - (0 if final else held_back(self._held, self._stop)))

    def _take(self, count: int, *, drop: int = 0) -> str:
        text, self._held = self._held[:count], self._held[count + drop :]
        return text


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """Return the length of the longest end of `text` that a mark could begin with."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
