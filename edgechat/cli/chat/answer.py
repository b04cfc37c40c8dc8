"""Prints an answer of `edgechat run`: its text to stdout, all else to stderr; or one JSON object."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.base.text import by_drafts, printable
from edgechat.chat.messages import not_sent
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import note, print_json
from edgechat.engine.types import Delta, Dropped, ErrorInfo, Finished, ModelInfo, Prefill, RequestEvent
from edgechat.planner.plan import LoadPlan, as_json

ENDS = {"length": "stopped at --max-tokens", "context": "the context is full", "cancelled": "stopped"}


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

    def take(self, event: RequestEvent) -> None:
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
            case Finished():
                self._finished = event

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
        if self._finished is not None:
            self._print_timings(self._finished, plan.context)

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
        parts = [
            f"{usage.completion_tokens} tokens",
            f"{timings.decode_tps:.1f} tokens/s",
            f"first token {timings.ttft_ms:.0f} ms",
            f"context {min(usage.prompt_tokens + usage.completion_tokens, context)}/{context}",
        ]
        if finished.speculation is not None and (gain := by_drafts(finished.speculation.speedup, 2)):
            parts.insert(2, gain)
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
            "finish_reason": finished.reason if finished else None,
            "error": msgspec.to_builtins(ErrorInfo.of(error)) if error else None,
            "usage": msgspec.to_builtins(finished.usage) if finished else None,
            "timings": {name: round(value, 3) for name, value in timings.items()},
            "chat": chat,
            "plan": as_json(plan),
            "speculation": drafts,
        }
