"""The transcript of one conversation: its turns as pieces.

A reply can be generated while another conversation is shown. So the pieces are a list of their own, which is
changed through the transcript on the screen only while that shows them.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgechat.base.errors import EdgechatError
from edgechat.chat.attachments.documents import passages_in
from edgechat.chat.messages import not_sent
from edgechat.chat.records import Attachment, Turn
from edgechat.planner.plan import LoadPlan
from edgechat.tui.chat.views import Branch
from edgechat.tui.transcript.pieces import CutPiece, FoldedPiece, Piece, ProblemPiece
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.turns import LiveReply, ReplyPiece, pieces_of
from edgechat.tui.transcript.welcome import WelcomePiece


class ConversationView:
    """Shows one conversation; see `edgechat.tui.chat.views.TranscriptView`."""

    def __init__(self, welcome: WelcomePiece | None = None) -> None:
        """welcome: what a new conversation begins with."""
        self.pieces: list[Piece] = [welcome] if welcome is not None else []
        self._welcome = welcome
        self._passages: dict[int, Attachment] = {}
        """What its replies may cite, by number."""
        self._transcript: Transcript | None = None

    def show_in(self, transcript: Transcript, *, turn: str = "") -> None:
        """Show the pieces from now on, at their end or at a turn."""
        self._transcript = transcript
        transcript.show(self.pieces, turn=turn)

    def hide(self) -> None:
        """Show nothing any more; the pieces are still kept up to date."""
        self._transcript = None

    def add(self, *pieces: Piece) -> None:
        if self._transcript is not None:
            self._transcript.add(*pieces)
        else:
            self.pieces += pieces

    def append(self, piece: Piece, text: str) -> None:
        if self._transcript is not None:
            self._transcript.append(piece, text)
        else:
            piece.append(text)

    def show_turns(self, turns: Sequence[tuple[Turn, Branch]], *, keep_problems: bool = False) -> None:
        self._begin()
        self._passages = passages_in(turn for turn, _ in turns)
        self._rearrange(
            [
                *(piece for piece in self.pieces if isinstance(piece, WelcomePiece)),
                *(piece for turn, branch in turns for piece in pieces_of(turn, branch, self._passages)),
                *(piece for piece in self.pieces if keep_problems and isinstance(piece, ProblemPiece)),
            ]
        )

    def add_turns(self, turns: Sequence[Turn]) -> None:
        self._begin()
        self._passages |= passages_in(turns)
        self.add(*(piece for turn in turns for piece in pieces_of(turn, passages=self._passages)))

    def add_problem(self, error: EdgechatError) -> None:
        self.add(ProblemPiece(error.message, error.hint))

    @property
    def questions(self) -> Sequence[str]:
        """What is offered to begin with; nothing once there are turns."""
        return self._welcome.questions if self._welcome is not None else ()

    def show_model(self, plan: LoadPlan) -> None:
        if self._welcome is not None:
            self._welcome.show_model(plan)

    def add_note(self, text: str) -> bool:
        if self._welcome is not None:
            self.append(self._welcome, text)
        return self._welcome is not None

    def _begin(self) -> None:
        """Let the turns take the place of what a new conversation begins with; its notes stay."""
        welcome, self._welcome = self._welcome, None
        if welcome is not None and welcome.text:
            welcome.begin()
        elif welcome is not None:
            self._rearrange([piece for piece in self.pieces if piece is not welcome])

    def mark_left_out(self, turns: Sequence[Turn]) -> None:
        gone = {turn.id for turn in turns}
        for piece in self.pieces:
            if piece.left_out != (piece.turn in gone):
                piece.mark(left_out=piece.turn in gone)
        pieces = [piece for piece in self.pieces if not isinstance(piece, CutPiece)]
        last = max((at for at, piece in enumerate(pieces) if piece.left_out), default=None)
        if last is not None:
            questions = sum(turn.role == "user" for turn in turns)
            pieces.insert(last + 1, CutPiece(f"The context is full: {not_sent(questions)}."))
        if [piece.text for piece in pieces] != [piece.text for piece in self.pieces]:
            self._rearrange(pieces)

    def new_reply(self) -> LiveReply:
        return LiveReply(self, passages=self._passages)

    def resume_reply(self, turn: Turn) -> LiveReply:
        texts = [
            piece
            for piece in self.pieces
            if piece.turn == turn.id and isinstance(piece, FoldedPiece | ReplyPiece)
        ]
        self._rearrange([piece for piece in self.pieces if piece.turn != turn.id or piece in texts])
        return LiveReply(self, turn, texts, self._passages)

    def follow_end(self) -> None:
        if self._transcript is not None:
            self._transcript.anchor()

    async def painted(self) -> None:
        if self._transcript is not None:
            await self._transcript.wait_for_refresh()

    def _rearrange(self, pieces: list[Piece]) -> None:
        if self._transcript is not None:
            self._transcript.rearrange(pieces)
        else:
            self.pieces[:] = pieces
