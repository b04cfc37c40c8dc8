"""A turn as pieces of the transcript: a stored one, or a reply while it is generated.

The text of a reply is collected as it comes and shown a few times a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from edgechat.base.text import one_line
from edgechat.chat.records import Turn
from edgechat.chat.reply.calls import UseChanged
from edgechat.engine.types import Delta
from edgechat.tui.transcript.calls import CallPiece
from edgechat.tui.transcript.passages import PassagesPiece
from edgechat.tui.transcript.pieces import (
    FooterPiece,
    NotePiece,
    Piece,
    ProblemPiece,
    ThoughtPiece,
    UserPiece,
    duration,
)
from edgechat.tui.transcript.reply_text import NO_PASSAGES, Passages, ReplyPiece

_ENDINGS = {
    "stopped": "■ You stopped the reply here.",
    "interrupted": "■ The reply was interrupted here. Ctrl+R tries again.",
    "failed": "■ There is no reply. Ctrl+R tries again.",
    "streaming": "■ Another edgechat is generating this reply.",
}
_LIMITS = {
    "context": "■ The context is full: the reply ends here. You can continue; the oldest turns will be left "
    "out.",
    "length": "■ The reply reached the maximum length.",
    "tools": "■ The reply called tools as often as one may (tool_rounds in the settings).",
}


def pieces_of(turn: Turn, branch: tuple[int, int] = (0, 1), passages: Passages = NO_PASSAGES) -> list[Piece]:
    """Return the pieces that show a turn.

    branch: which try it is, from 0, and of how many. passages: what a reply may cite.
    """
    pieces: list[Piece] = []
    if turn.role == "user":
        names = tuple(file.name for file in turn.attachments if file.source is None)
        given = [file for file in turn.attachments if file.source is not None]
        pieces += [UserPiece(turn.content, names, turn.images), *([PassagesPiece(given)] if given else [])]
    elif turn.role == "system":
        pieces.append(NotePiece(f"System prompt: {turn.content}"))
    else:
        for part in turn.rounds:
            pieces += _thought(part.thinking, part.thinking_tokens, part.thinking_seconds)
            pieces += _text(turn, part.content, passages)
            pieces += (CallPiece(use, ended=turn.state != "streaming") for use in part.uses)
        pieces += _thought(turn.thinking, *_thought_figures(turn)) + _text(turn, turn.content, passages)
        pieces += _ending_of(turn)
    return _of_turn(turn.id, [*pieces, *_footer_of(turn, branch)])


def _thought(thinking: str, tokens: int, seconds: float) -> list[Piece]:
    return [ThoughtPiece(thinking, tokens=tokens, seconds=seconds)] if thinking else []


def _text(turn: Turn, content: str, passages: Passages) -> list[Piece]:
    return [ReplyPiece(content, passages, is_complete=turn.state == "complete")] if content else []


def _of_turn(turn: str, pieces: list[Piece]) -> list[Piece]:
    for piece in pieces:
        piece.turn = turn
    return pieces


def _footer_of(turn: Turn, branch: tuple[int, int]) -> list[Piece]:
    figures = turn.figures
    parts: list[str] = []
    if figures is not None:
        parts += [one_line(figures.model, 60)] if figures.model else []
        if figures.usage is not None and figures.timings is not None:
            tokens, tps = figures.usage.completion_tokens, figures.timings.decode_tps
            parts.append("1 token" if tokens == 1 else f"{tokens:,} tokens")
            parts += [f"{tps:.1f} tok/s"] if tps else []
            parts.append(duration(figures.seconds))
    return [FooterPiece(parts, branch)] if parts or branch[1] > 1 else []


def _ending_of(turn: Turn) -> list[Piece]:
    """Return the pieces that say how a reply ended, if it did not end by itself."""
    pieces: list[Piece] = []
    if turn.error is not None:
        pieces.append(ProblemPiece(turn.error.message, turn.error.hint))
    links = [("Continue", "continue")] if turn.is_cut else []
    if turn.state in _ENDINGS and (turn.error is None or turn.state != "failed"):
        pieces.append(NotePiece(_ENDINGS[turn.state], "warning", links))
    elif turn.state == "complete" and turn.rounds and not turn.content and not turn.is_cut:
        pieces.append(NotePiece("■ The model said nothing after its calls."))
    elif turn.figures is not None and turn.figures.reason in _LIMITS:
        pieces.append(NotePiece(_LIMITS[turn.figures.reason], "warning", links))
    return pieces


def _thought_figures(turn: Turn) -> tuple[int, float]:
    """Return the tokens and the seconds that the thinking of a reply took, after its calls if it has any."""
    if turn.figures is None:
        return 0, 0.0
    tokens = turn.figures.thinking_tokens - sum(part.thinking_tokens for part in turn.rounds)
    seconds = turn.figures.thinking_seconds - sum(part.thinking_seconds for part in turn.rounds)
    return max(0, tokens), max(0.0, seconds)


class PieceView(Protocol):
    """What shows pieces."""

    def add(self, *pieces: Piece) -> None:
        """Append pieces."""

    def append(self, piece: Piece, text: str) -> None:
        """Append text to a piece."""


class LiveReply:
    """Feeds one streaming reply into a transcript; `paint` does the work, `take` only remembers."""

    def __init__(
        self,
        view: PieceView,
        turn: Turn | None = None,
        pieces: Sequence[Piece] = (),
        passages: Passages = NO_PASSAGES,
    ) -> None:
        """turn: a reply that is continued, and the pieces that show its text. passages: it may cite these."""
        self._view = view
        self._passages = passages
        self._texts = [piece for piece in pieces if isinstance(piece, ReplyPiece)]
        self._turn = turn.id if turn is not None else ""
        self._unpainted: dict[bool, list[str]] = {True: [], False: []}
        self._calls = {piece.use.id: piece for piece in pieces if isinstance(piece, CallPiece)}
        after = max((at for at, piece in enumerate(pieces) if isinstance(piece, CallPiece)), default=-1)
        pieces = pieces[after + 1 :]
        self._thought = next((piece for piece in pieces if isinstance(piece, ThoughtPiece)), None)
        self._reply = next((piece for piece in pieces if isinstance(piece, ReplyPiece)), None)
        self._start = 0.0
        self._thinking_tokens, self._thinking_seconds = _thought_figures(turn) if turn else (0, 0.0)
        self._tokens_before = self._thinking_tokens
        if self._thought is not None and self._reply is None:
            self._thought.resume()

    def take(self, delta: Delta) -> None:
        """Remember more text."""
        self._turn = self._turn or delta.request_id  # a new reply's turn and its request have one id
        self._start = self._start or time.monotonic() - self._thinking_seconds
        self._unpainted[delta.thinking].append(delta.text)
        if delta.thinking:
            self._thinking_tokens = self._tokens_before + delta.tokens

    def take_use(self, event: UseChanged) -> None:
        """Show a call, or what has become of it; the text that follows is another part of the reply."""
        self.paint()
        self._turn, use = event.turn_id, event.use
        if use.id in self._calls:
            self._calls[use.id].show(use, running=event.running)
            return
        if self._thought is not None and self._thought.seconds is None:
            self._thought.finish(self._thinking_tokens, time.monotonic() - self._start)
        self._thought = self._reply = None
        self._start, self._thinking_tokens, self._thinking_seconds, self._tokens_before = 0.0, 0, 0.0, 0
        self._calls[use.id] = CallPiece(use)
        self._view.add(*_of_turn(self._turn, [self._calls[use.id]]))

    def paint(self) -> bool:
        """Show the text taken since the last call; return whether there was any."""
        thought, reply = ("".join(self._unpainted[kind]) for kind in (True, False))
        self._unpainted = {True: [], False: []}
        if thought:
            self._show_thought(thought)
        if reply:
            self._show_reply(reply)
        return bool(thought or reply)

    def finish(self, turn: Turn, branch: tuple[int, int]) -> None:
        """Show the rest, and how the reply ended. branch: see `pieces_of`."""
        self.paint()
        if self._thought is not None:
            self._thought.finish(*_thought_figures(turn))
        for use in (use for part in turn.rounds for use in part.uses):
            if use.id in self._calls:
                self._calls[use.id].show(use)
                self._calls[use.id].finish()
            else:  # it was not carried out, since the reply was cut off
                self._view.add(*_of_turn(turn.id, [CallPiece(use, ended=True)]))
        for text in self._texts if turn.state == "complete" else ():
            text.finish()
        self._view.add(*_of_turn(turn.id, [*_ending_of(turn), *_footer_of(turn, branch)]))

    def _show_thought(self, text: str) -> None:
        if self._thought is None:
            self._thought = ThoughtPiece()
            self._view.add(*_of_turn(self._turn, [self._thought]))
        self._thought.tokens = self._thinking_tokens
        self._view.append(self._thought, text)

    def _show_reply(self, text: str) -> None:
        if self._reply is None:
            if self._thought is not None:
                self._thought.finish(self._thinking_tokens, time.monotonic() - self._start)
            # What a model sends first is often an empty line or two.
            text = text.lstrip("\n")
            self._reply = ReplyPiece(passages=self._passages)
            self._texts.append(self._reply)
            self._view.add(*_of_turn(self._turn, [self._reply]))
        self._view.append(self._reply, text)
