"""What a run says to a screen reader: whole sentences, each on a line of its own, and nothing twice.

No colours, no line that is written again, no cursor that moves. An answer comes in whole sentences as well: a
screen reader reads aloud each piece that is written.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TextIO

from edgechat.base.errors import EdgechatError
from edgechat.base.text import flat, one_line, printable
from edgechat.cli.chat.answer import ENDS, AnswerPrinter
from edgechat.cli.output.status import StatusLine
from edgechat.engine.types import Delta, Finished, RequestEvent

EVERY = 5.0
"""Seconds without a word after which it is said how things stand."""
_LONGEST = 400
"""Letters after which an answer that ends no sentence is written all the same."""
_SENTENCE = re.compile(r"[.!?:;…]['\")\]*_]*(?=\s)|\n")


class SpokenStatus(StatusLine):
    """Takes what a StatusLine takes, and says it when there was silence for a while."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._said = time.monotonic()

    def say(self, sentence: str) -> None:
        """See `StatusLine.say`."""
        self._stream.write(f"{flat(sentence)}\n")
        self._stream.flush()
        self._said = time.monotonic()

    def show(self, text: str) -> None:
        """Say it, unless something was said just now."""
        if time.monotonic() - self._said >= EVERY:
            line = one_line(text, 200)
            self.say(f"{line[:1].upper()}{line[1:]}.")

    def heard(self) -> None:
        """See `StatusLine.heard`."""
        self._said = time.monotonic()

    def clear(self) -> None:
        """There is nothing to take away."""


class SpokenAnswer(AnswerPrinter):
    """An answer between sentences that say where it begins and ends."""

    def __init__(self, status: SpokenStatus, *, dropped: int, has_system: bool) -> None:
        super().__init__(status, as_json=False, dropped=dropped, has_system=has_system)
        self._spoken = status
        self._begun = time.monotonic()
        self._kept = ""
        """The beginning of a sentence."""

    def take(self, event: RequestEvent) -> None:
        """See `AnswerPrinter.take`."""
        if isinstance(event, Delta):
            if event.thinking and not self._thinking:
                self._spoken.say("Thinking.")
            elif not event.thinking and not self._text:
                self._spoken.say("Answer:")
        super().take(event)

    def _print(self, text: str) -> None:
        self._kept += printable(text)
        ends = [found.end() for found in _SENTENCE.finditer(self._kept)]
        at = ends[-1] if ends else len(self._kept) if len(self._kept) > _LONGEST else 0
        self._write(at)

    def _write(self, at: int) -> None:
        if at:
            sys.stdout.write(self._kept[:at])
            sys.stdout.flush()
            self._kept = self._kept[at:]
            self._spoken.heard()

    def _finish_text(self, error: EdgechatError | None) -> None:
        self._write(len(self._kept))
        super()._finish_text(error)
        if error is not None and self._text:
            self._spoken.say("The answer stopped here.")

    def _print_timings(self, finished: Finished, context: int) -> None:
        n = finished.usage.completion_tokens
        took = _in_words(time.monotonic() - self._begun)
        told = f"End of answer, {n} token{'s' * (n != 1)} in {took}."
        if finished.reason in ENDS:
            end = ENDS[finished.reason]
            told += f" {end[0].upper()}{end[1:]}."
        self._spoken.say(told)


def _in_words(n: float) -> str:
    if n < 1:
        return "less than a second"
    count, unit = (n, "second") if n < 100 else (n / 60, "minute")
    return f"{count:.0f} {unit}{'s' * (round(count) != 1)}"
