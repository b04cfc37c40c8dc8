"""The reply that is being written: words are collected as they come and shown a few times a second."""

from __future__ import annotations

import time
from typing import Protocol

from edgechat.chat.records import Turn
from edgechat.engine.types import Delta
from edgechat.tui.transcript.pieces import Piece, ReplyPiece, ThoughtPiece
from edgechat.tui.transcript.turns import branch_note, ending_of, of_turn, thought_figures


class PieceView(Protocol):
    """What shows pieces."""

    def add(self, *pieces: Piece) -> None:
        """Append pieces."""

    def append(self, piece: Piece, text: str) -> None:
        """Let a piece grow."""


class LiveReply:
    """Feeds one streaming reply into a transcript; `paint` does the work, `take` only remembers."""

    def __init__(self, pane: PieceView) -> None:
        self._pane = pane
        self._turn = ""
        self._waiting: dict[bool, list[str]] = {True: [], False: []}
        self._thought: ThoughtPiece | None = None
        self._reply: ReplyPiece | None = None
        self._began = 0.0
        self._thinking_tokens = 0

    def take(self, delta: Delta) -> None:
        """Remember more text."""
        self._turn = delta.request_id  # a reply's turn and its request have one id
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

    def finish(self, turn: Turn, branch: tuple[int, int]) -> None:
        """Show the rest, and how the reply ended. branch: see `pieces_of`."""
        self.paint()
        if self._thought is not None:
            self._thought.finish(*thought_figures(turn))
        pieces = ending_of(turn)
        if branch[1] > 1:
            pieces.append(branch_note(*branch))
        self._pane.add(*of_turn(turn.id, pieces))

    def _show_thought(self, text: str) -> None:
        if self._thought is None:
            self._thought = ThoughtPiece()
            self._pane.add(*of_turn(self._turn, [self._thought]))
        self._thought.tokens = self._thinking_tokens
        self._pane.append(self._thought, text)

    def _show_reply(self, text: str) -> None:
        if self._reply is None:
            if self._thought is not None:
                self._thought.finish(self._thinking_tokens, time.monotonic() - self._began)
            # What a model sends first is often an empty line or two.
            text = text.lstrip("\n")
            self._reply = ReplyPiece()
            self._pane.add(*of_turn(self._turn, [self._reply]))
        self._pane.append(self._reply, text)
