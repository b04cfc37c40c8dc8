"""A stored turn as pieces of the transcript."""

from __future__ import annotations

from edgechat.chat.messages import not_sent
from edgechat.chat.records import Turn
from edgechat.tui.transcript.pieces import (
    NotePiece,
    Piece,
    ProblemPiece,
    ReplyPiece,
    ThoughtPiece,
    UserPiece,
)

_ENDINGS = {
    "stopped": "■ You stopped the reply here.",
    "interrupted": "■ The reply was interrupted here.",
    "failed": "■ No reply came.",
    "streaming": "■ Another edgechat is writing this reply.",
}


def pieces_of(turn: Turn) -> list[Piece]:
    """Return the pieces that show a turn."""
    if turn.role == "user":
        return [UserPiece(turn.content)]
    if turn.role == "system":
        return [NotePiece(f"System prompt: {turn.content}")]
    pieces: list[Piece] = []
    if turn.thinking:
        tokens, seconds = thought_figures(turn)
        pieces.append(ThoughtPiece(turn.thinking, tokens=tokens, seconds=seconds))
    if turn.content:
        pieces.append(ReplyPiece(turn.content))
    return pieces + ending_of(turn)


def ending_of(turn: Turn) -> list[Piece]:
    """Return the pieces that say how a reply ended, if it did not end by itself."""
    pieces: list[Piece] = []
    if turn.error is not None:
        pieces.append(ProblemPiece(turn.error.message, turn.error.hint))
    if turn.state in _ENDINGS and (turn.error is None or turn.state != "failed"):
        pieces.append(NotePiece(_ENDINGS[turn.state], "warning"))
    elif turn.figures is not None and turn.figures.reason == "context":
        pieces.append(
            NotePiece("■ The context is full: the reply ends here. Ctrl+N begins a new chat.", "warning")
        )
    elif turn.figures is not None and turn.figures.reason == "length":
        pieces.append(NotePiece("■ The reply reached its longest allowed length.", "warning"))
    return pieces


def dropped_note(turns: int) -> NotePiece:
    """Return the piece that says how many turns, questions with answers, the model is not sent any more."""
    return NotePiece(
        f"The context is full: {not_sent(turns)}. It still has what was said last. Ctrl+N begins a new chat."
    )


def thought_figures(turn: Turn) -> tuple[int, float]:
    """Return the tokens and the seconds that the thinking of a reply took."""
    figures = turn.figures
    return (figures.thinking_tokens, figures.thinking_seconds) if figures else (0, 0.0)
