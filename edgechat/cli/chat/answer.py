"""Prints an answer of `edgechat run`: its text to stdout, all else to stderr; or one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.base.text import by_drafts, flat, one_line, printable
from edgechat.chat.attachments import cited
from edgechat.chat.messages import not_sent
from edgechat.chat.records import Attachment, Figures, ToolUse
from edgechat.chat.reply.calls import OUTCOMES, UseChanged, arguments_in_a_line, name_of
from edgechat.chat.reply.reply import ReplyEvent
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import note, print_json
from edgechat.documents.citations import quotations_in
from edgechat.engine.types import Delta, Dropped, ErrorInfo, Finished, ModelInfo, Prefill, ToolCallBegun
from edgechat.planner.plan import LoadPlan, as_json

ENDS = {
    "length": "stopped at --max-tokens",
    "context": "the context is full",
    "cancelled": "stopped",
    "tools": "stopped after as many calls of tools in a row as tool_rounds allows",
}


_MOST_UNCITED = 8


class AnswerPrinter:
    """Prints the events of one answer."""

    def __init__(self, status: StatusLine, *, as_json: bool, dropped: int, has_system: bool) -> None:
        """`dropped`: the number of turns, questions with answers, that were not sent for the last reply."""
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
        """Those of documents that the conversation has, of which the answer may cite some."""

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
                self._status.show(f"writing a call of {call.name}")
            case UseChanged():
                self._take_use(event)
            case Finished():
                self._take_finished(event)

    def _take_use(self, event: UseChanged) -> None:
        """Print a call that is over."""
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
        """Take the end of a request; the figures of one reply are of all of its requests."""
        figures = Figures(usage=finished.usage, timings=finished.timings)
        self._figures = figures = self._figures.followed_by(figures) if self._figures else figures
        usage, timings = figures.usage or finished.usage, figures.timings or finished.timings
        self._finished = msgspec.structs.replace(finished, usage=usage, timings=timings)

    def _break_text(self) -> None:
        """End the text before calls: what follows them is another part of it."""
        if self._text and not self._text.endswith("\n"):
            self._text += "\n\n" if self._as_json else "\n"
            self._print("\n")

    def flush(self) -> None:
        """Print what has been held back: nothing more comes."""

    def end(
        self, plan: LoadPlan, model: ModelInfo, chat: str | None, error: EdgechatError | None = None
    ) -> None:
        """Print what follows an answer, complete or not. `chat` is the conversation's id."""
        self._status.clear()
        if self._as_json:
            print_json(self._object(plan, model, chat, error))
            return
        self._finish_text(error)
        if not self._text and self._uses and error is None:
            note(f"the model has called tools {len(self._uses)} times, and given no answer.")
        self._print_sources()
        if self._finished is not None:
            self._print_timings(self._finished, plan.context)

    def _print_sources(self) -> None:
        """Print the passages that the answer cites, or might have, and quotations that are in none."""
        sources = cited(self._text, self.passages)
        for passage in sources:
            print(flat(passage.name), file=sys.stderr)
        if self.passages and not sources:
            names = "; ".join(passage.name for passage in self.passages[:_MOST_UNCITED])
            print(flat(f"it cites none of what it was given: {names}"), file=sys.stderr)
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
