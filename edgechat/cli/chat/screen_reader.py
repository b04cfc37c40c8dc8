"""Output for screen readers: whole sentences, each on a line of its own, and nothing twice.

There are no colours, no rewritten lines and no cursor movements. Answers are written in whole sentences, too,
since a screen reader reads aloud each piece that is written.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TextIO

from edgechat.base.errors import EdgechatError
from edgechat.base.text import flat, one_line, printable
from edgechat.chat.attachments import cited
from edgechat.chat.reply.reply import ReplyEvent
from edgechat.cli.chat.answer import ENDS, AnswerPrinter
from edgechat.cli.output.status import StatusLine
from edgechat.engine.types import Delta, Finished

EVERY = 5.0
"""Seconds of silence after which the status is written."""
_LONGEST = 400
"""Characters after which an unfinished sentence is written all the same."""
_SENTENCE_END = re.compile(r"[.!?:;…]['\")\]*_]*(?=\s)|\n")


class SpokenStatus(StatusLine):
    """A StatusLine that writes the status as a sentence after a while of silence."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._last_output = time.monotonic()

    def say(self, sentence: str) -> None:
        """See `StatusLine.say`."""
        self._stream.write(f"{flat(sentence)}\n")
        self._stream.flush()
        self._last_output = time.monotonic()

    def show(self, text: str) -> None:
        """Write the status, unless something was written just now."""
        if time.monotonic() - self._last_output >= EVERY:
            line = one_line(text, 200)
            self.say(f"{line[:1].upper()}{line[1:]}.")

    def heard(self) -> None:
        """See `StatusLine.heard`."""
        self._last_output = time.monotonic()

    def clear(self) -> None:
        """Do nothing: lines stay."""


class SpokenAnswer(AnswerPrinter):
    """An answer between sentences that say where it begins and ends."""

    def __init__(self, status: SpokenStatus, *, dropped: int, has_system: bool) -> None:
        super().__init__(status, as_json=False, dropped=dropped, has_system=has_system)
        self._spoken = status
        self._started = time.monotonic()
        self._unwritten = ""
        """The beginning of a sentence."""

    def take(self, event: ReplyEvent) -> None:
        """See `AnswerPrinter.take`."""
        if isinstance(event, Delta):
            if event.thinking and not self._thinking:
                self._spoken.say("Thinking.")
            elif not event.thinking and not self._text:
                self._spoken.say("Answer:")
        super().take(event)

    def _print(self, text: str) -> None:
        self._unwritten += printable(text)
        length = max((match.end() for match in _SENTENCE_END.finditer(self._unwritten)), default=0)
        if not length and len(self._unwritten) > _LONGEST:
            length = len(self._unwritten)
        self._write(length)

    def _break_text(self) -> None:
        super()._break_text()
        self._write(len(self._unwritten))

    def _write(self, length: int) -> None:
        if length:
            sys.stdout.write(self._unwritten[:length])
            sys.stdout.flush()
            self._unwritten = self._unwritten[length:]
            self._spoken.heard()

    def _finish_text(self, error: EdgechatError | None) -> None:
        self._write(len(self._unwritten))
        super()._finish_text(error)
        if error is not None and self._text:
            self._spoken.say("The answer stopped here.")

    def _print_sources(self) -> None:
        if cited(self._text, self.passages):
            self._spoken.say("Sources:")
        super()._print_sources()

    def _print_timings(self, finished: Finished, context: int) -> None:
        n = finished.usage.completion_tokens
        took = _duration(time.monotonic() - self._started)
        sentences = f"End of answer, {n} token{'s' * (n != 1)} in {took}."
        if finished.reason in ENDS:
            end = ENDS[finished.reason]
            sentences += f" {end[0].upper()}{end[1:]}."
        self._spoken.say(sentences)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "less than a second"
    count, unit = (seconds, "second") if seconds < 100 else (seconds / 60, "minute")
    return f"{count:.0f} {unit}{'s' * (round(count) != 1)}"
