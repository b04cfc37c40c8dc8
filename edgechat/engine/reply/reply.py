"""Reply text: turns token bytes into text, removes stop strings, and separates thinking and tool calls."""

from __future__ import annotations

import codecs
from enum import Enum

from edgechat.engine.prompt.template import Marks
from edgechat.engine.tool_calls.scan import held_back
from edgechat.engine.tool_calls.splitter import ArgumentsText, Ending, Item, Splitter
from edgechat.engine.types import ToolCall

Piece = tuple[str, bool]
"""A piece of text, and whether it is part of the thinking."""
Shown = Piece | ToolCall | ArgumentsText


class ReplyPart(Enum):
    """The part of a reply to which its next character belongs."""

    START = "start"
    THINKING = "thinking"
    BEFORE_ANSWER = "before answer"
    ANSWER = "answer"


class Reply:
    """The text of a reply that is still growing.

    Text that may be the start of a mark or a stop string is held back until it is clear whether it is one, so
    text that has been shown is never taken back. Stop strings end the answer, but not thinking or a call.
    """

    def __init__(
        self,
        stop: tuple[str, ...] = (),
        marks: Marks | None = None,
        *,
        ends: tuple[str, ...] = (),
        thinking: bool = False,
        calls: Splitter | None = None,
    ) -> None:
        """ends: stop strings that were not requested, such as the template's end-of-message mark.

        thinking: whether the prompt already opens the thought. calls: separates calls from the answer.
        """
        self.stopped = False
        self.stop_text: str | None = None
        """The requested stop string that ended the answer, if any."""
        self.n_shown = 0
        """How many characters of the answer have been returned so far."""
        self._asked = tuple(text for text in stop if text)
        self._stop = self._asked + tuple(text for text in ends if text)
        self._marks = marks
        self._calls = calls
        self._buffer = ""
        self._undecided = ""
        """The end of the answer, if it may be the start of a stop string."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if marks is None:
            self.where = ReplyPart.ANSWER
        else:
            self.where = ReplyPart.THINKING if thinking else ReplyPart.START

    @property
    def n_answer(self) -> int:
        """Number of characters in the answer so far, including those held back."""
        outside = 0 if self.where is ReplyPart.THINKING else len(self._buffer)
        in_calls = self._calls.n_held if self._calls is not None else 0
        return self.n_shown + len(self._undecided) + in_calls + outside

    @property
    def is_holding(self) -> bool:
        """Whether any text is held back."""
        return bool(self._buffer)

    @property
    def in_call(self) -> bool:
        """Whether the next text belongs to a call, or to text that may turn out to be one."""
        return self._calls is not None and self._calls.inside

    @property
    def n_calls(self) -> int:
        """Number of calls so far."""
        return self._calls.n_calls if self._calls is not None else 0

    def feed(self, piece: bytes) -> list[Shown]:
        """Add the bytes of a token; return what can be shown now."""
        self._buffer += self._decoder.decode(piece)
        return self._drain(final=False)

    def finish(self, *, cut: bool = False) -> list[Shown]:
        """End the reply and return what was held back. cut: whether a limit ended the reply."""
        self._buffer += self._decoder.decode(b"", final=True)
        shown = self._drain(final=True)
        if self._calls is not None and not self.stopped:
            shown += self._split_answer(self._calls.finish(cut=cut))
        return shown + self._answer_text("", final=True)

    def _drain(self, *, final: bool) -> list[Shown]:
        shown: list[Shown] = []
        while self._buffer and not self.stopped:
            before = (self.where, len(self._buffer))
            if self.where is ReplyPart.ANSWER:
                shown += self._take_answer()
            elif self.where is ReplyPart.THINKING:
                text = self._take_thinking(final=final)
                shown += [(text, True)] if text else []
            else:
                self._skip_marks(final=final)
            if before == (self.where, len(self._buffer)):
                break
        return shown

    def _skip_marks(self, *, final: bool) -> None:
        """Skip whitespace and marks before a thought or an answer."""
        assert self._marks is not None
        self._buffer = self._buffer.lstrip()
        marks = self._marks.skip + ((self._marks.open,) if self.where is ReplyPart.START else ())
        marks += self._calls.skip if self._calls is not None else ()
        for mark in marks:
            if self._buffer.startswith(mark):
                self._buffer = self._buffer[len(mark) :]
                if mark == self._marks.open:
                    self.where = ReplyPart.THINKING
                return
        undecided = any(mark.startswith(self._buffer) for mark in marks)
        if self._buffer and (final or not undecided):
            self.where = ReplyPart.ANSWER

    def _take_thinking(self, *, final: bool) -> str:
        assert self._marks is not None
        close = self._marks.close
        at = self._buffer.find(close)
        if at >= 0:
            self.where = ReplyPart.BEFORE_ANSWER
            return self._take(at, drop=len(close))
        return self._take(len(self._buffer) - (0 if final else held_back(self._buffer, (close,))))

    def _take_answer(self) -> list[Shown]:
        text, self._buffer = self._buffer, ""
        return self._answer_text(text) if self._calls is None else self._split_answer(self._calls.feed(text))

    def _split_answer(self, items: list[Item]) -> list[Shown]:
        """Return the part of these items that can be shown, up to the end of the answer."""
        assert self._calls is not None
        shown: list[Shown] = []
        for item in items:
            if self.stopped:
                break
            if isinstance(item, str):
                shown += self._answer_text(item)
                continue
            shown += self._answer_text("", final=True)
            if isinstance(item, ToolCall | ArgumentsText):
                shown.append(item)
            elif item is Ending.MESSAGE and self._marks is not None:
                self.where, self._buffer = ReplyPart.START, self._calls.rest()
            else:
                self.stopped = True
        return shown

    def _answer_text(self, text: str, *, final: bool = False) -> list[Shown]:
        """Add `text` to the answer; return what can be shown now."""
        if self.stopped:
            return []
        text = self._undecided + text
        stops = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if stops:
            at, stop = min(stops, key=lambda found: found[0])
            self.stop_text = stop if stop in self._asked else None
            self.stopped = True
            shown, self._undecided = text[:at], ""
        else:
            decided = len(text) - (0 if final else held_back(text, self._stop))
            shown, self._undecided = text[:decided], text[decided:]
        self.n_shown += len(shown)
        return [(shown, False)] if shown else []

    def _take(self, count: int, *, drop: int = 0) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count + drop :]
        return text
