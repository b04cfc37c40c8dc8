"""The reply that is being written: words are collected as they come and shown a few times a second."""

from __future__ import annotations

import time

from edgechat.chat.records import Turn
from edgechat.engine.types import Delta
from edgechat.tui.transcript.pieces import ReplyPiece, ThoughtPiece
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.turns import ending_of, thought_figures


class LiveReply:
    """Feeds one streaming reply into the transcript; `paint` does the work, `take` only remembers."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._waiting: dict[bool, list[str]] = {True: [], False: []}
        self._thought: ThoughtPiece | None = None
        self._reply: ReplyPiece | None = None
        self._began = 0.0
        self._thinking_tokens = 0

    def take(self, delta: Delta) -> None:
        """Remember more text."""
        self._began = self._began or time.monotonic()
        self._waiting[delta.thinking].append(delta.text)
        if delta.thinking:
            self._thinking_tokens = delta.tokens

    def paint(self) -> bool:
        """Show what has come since the last time; False if nothing has."""
        thought, reply = ("".join(self._waiting[kind]) for kind in (True, False))
        self._waiting = {True: [], False: []}
        if thought:
            self._show_thought(thought)
        if reply:
            self._show_reply(reply)
        return bool(thought or reply)

    def finish(self, turn: Turn) -> None:
        """Show the rest, and how the reply ended."""
        self.paint()
        if self._thought is not None:
            self._thought.finish(*thought_figures(turn))
        self._transcript.add(*ending_of(turn))

    def _show_thought(self, text: str) -> None:
        if self._thought is None:
            self._thought = ThoughtPiece()
            self._transcript.add(self._thought)
        self._thought.tokens = self._thinking_tokens
        self._transcript.append(self._thought, text)

    def _show_reply(self, text: str) -> None:
        if self._reply is None:
            if self._thought is not None:
                self._thought.finish(self._thinking_tokens, time.monotonic() - self._began)
            # What a model sends first is often an empty line or two.
            text = text.lstrip("\n")
            self._reply = ReplyPiece()
            self._transcript.add(self._reply)
        self._transcript.append(self._reply, text)
