"""Answer printers: text on stdout and everything else on stderr, JSON, or sentences for screen readers."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.base.text import by_drafts, flat, one_line, printable
from edgechat.chat.attachments import cited
from edgechat.chat.messages import not_sent
from edgechat.chat.records import Attachment, Figures, ToolUse
from edgechat.chat.reply.calls import OUTCOMES, UseChanged, arguments_in_a_line, name_of
from edgechat.chat.reply.reply import ReplyEvent
from edgechat.cli.terminal_io import StatusLine, note, print_json
from edgechat.documents.citations import quotations_in
from edgechat.engine.types import Delta, Dropped, ErrorInfo, Finished, ModelInfo, Prefill, ToolCallBegun
from edgechat.planner.plan import LoadPlan, as_json

ENDS = {
    "length": "stopped at --max-tokens",
    "context": "the context is full",
    "cancelled": "stopped",
    "tools": "stopped after as many rounds of tool calls as tool_rounds allows",
}


_MOST_UNCITED = 8


class AnswerPrinter:
    """Prints an answer as its events arrive."""

    def __init__(self, status: StatusLine, *, as_json: bool, dropped: int, has_system: bool) -> None:
        """dropped: number of exchanges that were left out of the last request."""
        self._status = status
        self._as_json = as_json
        self._dropped = dropped
        self._has_system = has_system
        self._text = ""
        self._thinking = ""
        self._finished: Finished | None = None
        self._figures: Figures | None = None
        self._uses: dict[str, ToolUse] = {}
        self.passages: Sequence[Attachment] = ()
        """Passages from the conversation's documents that the answer can cite."""

    def take(self, event: ReplyEvent) -> None:
        """Print an event."""
        match event:
            case Dropped(_, turns):
                self._note_dropped(turns)
            case Prefill(_, done, total):
                self._status.show(f"reading the prompt {done}/{total} tokens")
            case Delta(_, text, thinking, tokens):
                if thinking:
                    self._thinking += text
                    self._status.show(f"thinking, {tokens} tokens")
                else:
                    self._text += text
                    self._print(text)
            case ToolCallBegun(_, call):
                self._status.show(f"writing a call to {call.name}")
            case UseChanged():
                self._take_use(event)
            case Finished():
                self._take_finished(event)

    def _take_use(self, event: UseChanged) -> None:
        """Print a line about a tool call once it is finished, and show its status until then."""
        use = self._uses[event.use.id] = event.use
        if event.running:
            self._status.show(f"calling {name_of(use)}")
        elif use.outcome == "open":
            self._break_text()
        else:
            self._status.clear()
            end = "" if use.outcome == "answered" else f", {OUTCOMES[use.outcome]}"
            seconds = f", {use.seconds:.1f} s" if use.outcome in ("answered", "failed") else ""
            print(f"called {name_of(use)}({arguments_in_a_line(use)}){end}{seconds}", file=sys.stderr)
            if event.error is not None:
                note(f"{event.error.message} {event.error.hint or ''}")

    def _take_finished(self, finished: Finished) -> None:
        """Add the figures for one request to the totals for the reply."""
        figures = Figures(usage=finished.usage, timings=finished.timings)
        self._figures = figures = self._figures.followed_by(figures) if self._figures else figures
        usage, timings = figures.usage or finished.usage, figures.timings or finished.timings
        self._finished = msgspec.structs.replace(finished, usage=usage, timings=timings)

    def _break_text(self) -> None:
        """End the text so far with a line break, so that a tool call can be printed."""
        if self._text and not self._text.endswith("\n"):
            self._text += "\n\n" if self._as_json else "\n"
            self._print("\n")

    def flush(self) -> None:
        """Print any buffered text. This class does no buffering."""

    def end(
        self, plan: LoadPlan, model: ModelInfo, chat: str | None, error: EdgechatError | None = None
    ) -> None:
        """Print what comes after an answer, even if it is incomplete. chat: the conversation's ID."""
        self._status.clear()
        if self._as_json:
            print_json(self._object(plan, model, chat, error))
            return
        self._finish_text(error)
        if not self._text and self._uses and error is None:
            note(f"the model has called tools {len(self._uses)} times, but has not given an answer.")
        self._print_sources()
        if self._finished is not None:
            self._print_timings(self._finished, plan.context)

    def _print_sources(self) -> None:
        """Print the passages cited, or a note that none were, and any quotations not found in a passage."""
        sources = cited(self._text, self.passages)
        for passage in sources:
            print(flat(passage.name), file=sys.stderr)
        if self.passages and not sources:
            names = "; ".join(passage.name for passage in self.passages[:_MOST_UNCITED])
            print(flat(f"it cites none of the given passages: {names}"), file=sys.stderr)
        for quotation in quotations_in(self._text, [passage.text for passage in self.passages]):
            if self.passages and not quotation.is_there:
                note(f"not in the documents: “{one_line(quotation.text, 100)}”")

    def _finish_text(self, error: EdgechatError | None) -> None:
        if self._text and not self._text.endswith("\n"):
            print(flush=True)

    def _print(self, text: str) -> None:
        if not self._as_json:
            self._status.clear()
            sys.stdout.write(printable(text))
            sys.stdout.flush()

    def _note_dropped(self, turns: int) -> None:
        if turns != self._dropped:
            self._status.clear()
            system_stays = "; the system prompt stays" if self._has_system else ""
            note(f"the context is full: {not_sent(turns)}{system_stays}.")

    def _print_timings(self, finished: Finished, context: int) -> None:
        usage, timings = finished.usage, finished.timings
        n = usage.completion_tokens
        parts = [
            "1 token" if n == 1 else f"{n} tokens",
            *([f"{timings.decode_tps:.1f} tokens/s"] if timings.decode_tps else []),
            f"first token {timings.ttft_ms:.0f} ms",
            f"context {min(usage.prompt_tokens + usage.completion_tokens, context)}/{context}",
        ]
        if finished.speculation is not None and (gain := by_drafts(finished.speculation.speedup, 2)):
            parts.insert(-2, gain)
        if finished.reason in ENDS:
            parts.append(ENDS[finished.reason])
        print(" · ".join(parts), file=sys.stderr)

    def _object(
        self, plan: LoadPlan, model: ModelInfo, chat: str | None, error: EdgechatError | None
    ) -> dict[str, Any]:
        finished = self._finished
        timings = {"load_ms": model.load_ms} | (msgspec.to_builtins(finished.timings) if finished else {})
        speculation, drafts = finished.speculation if finished else None, None
        if speculation is not None:
            drafts = msgspec.structs.asdict(speculation) | {"drafters": list(model.drafters)}
        return {
            "text": self._text,
            "thinking": self._thinking or None,
            "sources": [
                {"name": one.name} | msgspec.structs.asdict(one.source)
                for one in cited(self._text, self.passages)
                if one.source is not None
            ],
            "calls": [_call(use) for use in self._uses.values()],
            "finish_reason": finished.reason if finished else None,
            "error": msgspec.to_builtins(ErrorInfo.of(error)) if error else None,
            "usage": msgspec.to_builtins(finished.usage) if finished else None,
            "timings": {name: round(value, 3) for name, value in timings.items()},
            "chat": chat,
            "plan": as_json(plan),
            "speculation": drafts,
        }


def _call(use: ToolUse) -> dict[str, Any]:
    names = ("server", "tool", "arguments", "outcome", "result", "seconds")
    return {name: getattr(use, name) for name in names} | {"tool": use.tool or use.name}


SPOKEN_SECONDS = 5.0
"""Seconds of silence before a status message is printed for a screen reader."""
_LONGEST = 400
"""Length in characters at which a sentence is printed even though it is unfinished."""
_SENTENCE_END = re.compile(r"[.!?:;…]['\")\]*_]*(?=\s)|\n")


class SpokenStatus(StatusLine):
    """A status for screen readers, printed as lines that stay on screen, without colors or cursor movement.

    It is only printed after a period of silence, as a full sentence.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._last_output = time.monotonic()

    def say(self, sentence: str) -> None:
        """See `StatusLine.say`."""
        self._stream.write(f"{flat(sentence)}\n")
        self._stream.flush()
        self._last_output = time.monotonic()

    def show(self, text: str) -> None:
        """Print the status if nothing has been printed for a while."""
        if time.monotonic() - self._last_output >= SPOKEN_SECONDS:
            line = one_line(text, 200)
            self.say(f"{line[:1].upper()}{line[1:]}.")

    def heard(self) -> None:
        """See `StatusLine.heard`."""
        self._last_output = time.monotonic()

    def clear(self) -> None:
        """Do nothing: lines already printed stay on screen."""


class SpokenAnswer(AnswerPrinter):
    """An answer for screen readers, with sentences that announce its start and end.

    It is printed in whole sentences, since screen readers speak the text of each write separately.
    """

    def __init__(self, status: SpokenStatus, *, dropped: int, has_system: bool) -> None:
        super().__init__(status, as_json=False, dropped=dropped, has_system=has_system)
        self._spoken = status
        self._started = time.monotonic()
        self._unwritten = ""
        """The start of a sentence that has not been printed yet."""

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
