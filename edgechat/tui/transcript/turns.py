"""Turns as pieces of the transcript, both stored ones and a reply being generated.

A reply's text is collected as it arrives and shown a few times a second. Tool calls and document
passages are folded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from textual import events
from textual.content import Content
from textual.style import Style

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line, printable
from edgechat.chat.attachments import passages_in
from edgechat.chat.messages import not_sent
from edgechat.chat.records import Attachment, ToolUse, Turn
from edgechat.chat.reply.calls import OUTCOMES, UseChanged, arguments_in_a_line, name_of
from edgechat.documents.citations import quotations_in
from edgechat.engine.types import Delta
from edgechat.planner.plan import LoadPlan
from edgechat.tools.tool import inert, shown_arguments
from edgechat.tui.markdown.blocks import EMPTY, RenderedLine
from edgechat.tui.markdown.document import CITED, Document, Sources
from edgechat.tui.transcript.pieces import (
    CutPiece,
    FoldedPiece,
    FoldedSheet,
    FooterPiece,
    NotePiece,
    Piece,
    PieceSheet,
    ProblemPiece,
    ThoughtPiece,
    UserPiece,
    behind_bar,
    duration,
    wrap,
)
from edgechat.tui.transcript.sheet import Sheet
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.welcome import WelcomePiece

Passages = Mapping[int, Attachment]
"""Passages that a conversation's replies may cite, keyed by number; more may be added."""
NO_PASSAGES: Passages = MappingProxyType({})
_MOST_TOLD = 300
"""Maximum number of characters of a passage to show in a citation's tooltip."""


class ReplyPiece(Piece):
    """A reply in Markdown, which may still be growing. It is parsed only while near the screen."""

    is_searched = True

    def __init__(
        self, text: str = "", passages: Passages = NO_PASSAGES, *, is_complete: bool = False
    ) -> None:
        """is_complete: whether the reply is complete, so that its quotations are checked against passages."""
        super().__init__(text)
        self.passages = passages
        self._is_complete = is_complete
        self._unfounded: tuple[str, ...] | None = None
        self._document = Document()

    def _parsed(self) -> Document:
        sources = Sources(self.passages.keys(), self._unfounded_quotations())
        return Document(self.text, sources=sources)

    def _unfounded_quotations(self) -> tuple[str, ...]:
        """Return the quotations not found in any passage, or () if there are no passages."""
        if not (self._is_complete and self.passages):
            return ()
        if self._unfounded is None:
            quotations = quotations_in(self.text, [one.text for one in self.passages.values()])
            self._unfounded = tuple(one.text for one in quotations if not one.is_there)
        return self._unfounded

    def mount(self) -> Sheet:
        self._document = self._parsed()
        return super().mount()

    def unmount(self) -> Sheet | None:
        self._document = Document()
        return super().unmount()

    def _new_sheet(self) -> Sheet:
        return ReplySheet(self)

    def append(self, text: str) -> None:
        text = printable(text)
        if self.sheet is not None:
            self._document.append(text)
        super().append(text)

    def finish(self) -> None:
        """Mark the reply as complete, and highlight quotations not found in any passage."""
        self._is_complete = True
        if self._unfounded_quotations() and self.sheet is not None:
            self._document = self._parsed()
            self._changed()

    def lay_out(self, width: int) -> list[RenderedLine]:
        return self._with_footnotes(self._document.lines(width), width)

    def lines(self, width: int) -> list[RenderedLine]:
        return self.lay_out(width) if self.sheet is not None else self._parsed().lines(width)

    def _with_footnotes(self, lines: list[RenderedLine], width: int) -> list[RenderedLine]:
        for at, quotation in enumerate(self._unfounded or ()):
            footnote = f"not in the documents: “{one_line(quotation, 120)}”"
            lines += [*([] if at else [EMPTY]), *wrap(footnote, width, ".warning")]
        return lines


class ReplySheet(PieceSheet[ReplyPiece]):
    """A reply. The tooltip of a citation shows its passage."""

    def __init__(self, piece: ReplyPiece) -> None:
        super().__init__(piece)
        self._told: int | None = None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        number = event.style.meta.get(CITED)
        if number != self._told:
            self._told = number
            passage = self._piece.passages.get(number) if number is not None else None
            self.tooltip = _told(passage) if passage is not None else None

    def on_leave(self) -> None:
        self._told = self.tooltip = None


def _told(passage: Attachment) -> Content:
    return Content.assemble((one_line(passage.name, 120), "bold"), "\n", one_line(passage.text, _MOST_TOLD))


_WRONG = ("failed", "refused", "stopped")


class CallPiece(FoldedPiece):
    """A tool call, folded until the user unfolds it."""

    def __init__(self, use: ToolUse, *, ended: bool = False) -> None:
        """ended: whether the reply has ended, in which case a call without a result will never get one."""
        super().__init__()
        self._ended = ended
        self._running = False
        self.use = use
        """The call in its latest state."""
        self.show(use)

    def show(self, use: ToolUse, *, running: bool = False) -> None:
        self.use, self._running = use, running
        self.text = "\n".join(filter(None, [shown_arguments(use.arguments), inert(use.result)]))
        self._changed()

    def finish(self) -> None:
        """Record that the reply has ended."""
        self._ended = True
        self._changed()

    def heading(self, width: int) -> Content:
        use, end = self.use, self._state
        name, mark = name_of(use), "▾" if self.unfolded else "▸"
        room = width - len(f"{mark} ƒ {name}() · {end}")
        start = Content.assemble(f"{mark} ƒ ", (name, ".code"))
        arguments = Content(f"({arguments_in_a_line(use, room)})" if room > 8 else "").stylize(".faint")
        style = ".warning" if use.outcome in _WRONG else ".faint"
        return Content.assemble(start, arguments, (f" · {end}", style))

    @property
    def _state(self) -> str:
        use = self.use
        if use.outcome == "open" and not self._ended:
            return "running" if self._running else "requested"
        if use.outcome == "answered":
            return duration(use.seconds)
        return OUTCOMES[use.outcome]

    def body(self, width: int) -> list[RenderedLine]:
        lines = behind_bar(
            Content(shown_arguments(self.use.arguments)).stylize(".code"), width, ".faint", "│ "
        )
        if self.use.result:
            result = Content(inert(self.use.result).strip("\n"))
            lines += behind_bar(Content("─ result").stylize(".faint"), width, ".faint", "│ ")
            lines += behind_bar(result, width, ".faint", "│ ")
        for image in self.use.images:
            shown = Content(f"[{one_line(image.name)}, {image.size}]").stylize(".faint")
            lines += behind_bar(shown, width, ".faint", "│ ")
        return lines


class PassagesPiece(FoldedPiece):
    """Passages, folded until the user unfolds them. Clicking a name shows the passage."""

    def __init__(self, passages: Sequence[Attachment]) -> None:
        super().__init__("\n".join(one_line(one.name) for one in passages))
        self._passages = passages

    def _new_sheet(self) -> Sheet:
        return PassagesSheet(self)

    def estimate(self, width: int) -> int:
        return 1 + len(self._passages) * self.unfolded

    def heading(self, width: int) -> Content:
        sources = [one.source for one in self._passages if one.source is not None]
        n_whole = sum(not source.place for source in sources)
        counts = [(n_whole, "whole document"), (len(sources) - n_whole, "passage")]
        amount = " and ".join(f"{n:,} {what}{'s' * (n != 1)}" for n, what in counts if n)
        names = ", ".join(dict.fromkeys(one_line(source.collection, 40) for source in sources))
        line = f"{'▾' if self.unfolded else '▸'} ▤ {amount} from {names}"
        return Content(one_line(line, width)).stylize(".faint")

    def body(self, width: int) -> list[RenderedLine]:
        lines: list[RenderedLine] = []
        for one in self._passages:
            name = Content(one_line(one.name, max(1, width - 2))).stylize(".code")
            if one.source is not None:
                name = name.stylize(Style.from_meta({"@click": f"screen.passage({one.source.number})"}))
            lines += behind_bar(name, width, ".faint", "│ ")
        return lines


class PassagesSheet(FoldedSheet):
    """Passages, directly below their question."""

    DEFAULT_CSS = """
    PassagesSheet { padding: 0; }
    """


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
    "tools": "■ The reply reached the limit on tool calls (tool_rounds in the settings).",
}


def pieces_of(turn: Turn, branch: tuple[int, int] = (0, 1), passages: Passages = NO_PASSAGES) -> list[Piece]:
    """Return the pieces that show a turn.

    branch: the zero-based index of this version of the turn, and the number of versions.
    passages: the passages that a reply may cite.
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
    """Return the pieces that say how a reply ended, if there is anything to say."""
    pieces: list[Piece] = []
    if turn.error is not None:
        pieces.append(ProblemPiece(turn.error.message, turn.error.hint))
    links = [("Continue", "continue")] if turn.is_cut else []
    if turn.state in _ENDINGS and (turn.error is None or turn.state != "failed"):
        pieces.append(NotePiece(_ENDINGS[turn.state], "warning", links))
    elif turn.state == "complete" and turn.rounds and not turn.content and not turn.is_cut:
        pieces.append(NotePiece("■ The model wrote nothing after its tool calls."))
    elif turn.figures is not None and turn.figures.reason in _LIMITS:
        pieces.append(NotePiece(_LIMITS[turn.figures.reason], "warning", links))
    return pieces


def _thought_figures(turn: Turn) -> tuple[int, float]:
    """Return how many tokens and seconds the thinking after a reply's last tool call took."""
    if turn.figures is None:
        return 0, 0.0
    tokens = turn.figures.thinking_tokens - sum(part.thinking_tokens for part in turn.rounds)
    seconds = turn.figures.thinking_seconds - sum(part.thinking_seconds for part in turn.rounds)
    return max(0, tokens), max(0.0, seconds)


class ConversationView:
    """The pieces of one conversation; a `TranscriptView`.

    A reply may be generated while another conversation is on screen. The pieces are therefore a separate
    list, which is changed through the transcript only while the transcript is showing it.
    """

    def __init__(self, welcome: WelcomePiece | None = None) -> None:
        """welcome: the start page of a new conversation."""
        self.pieces: list[Piece] = [welcome] if welcome is not None else []
        self._welcome = welcome
        self._passages: dict[int, Attachment] = {}
        """Passages that the replies may cite, keyed by number."""
        self._transcript: Transcript | None = None

    def show_in(self, transcript: Transcript, *, turn: str = "") -> None:
        """Show the pieces in a transcript, scrolled to the end or to a turn."""
        self._transcript = transcript
        transcript.show(self.pieces, turn=turn)

    def hide(self) -> None:
        """Stop showing the pieces, but keep them up to date."""
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

    def show_turns(
        self, turns: Sequence[tuple[Turn, tuple[int, int]]], *, keep_problems: bool = False
    ) -> None:
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
        """Suggested questions, or () once there are turns."""
        return self._welcome.questions if self._welcome is not None else ()

    def show_model(self, plan: LoadPlan) -> None:
        if self._welcome is not None:
            self._welcome.show_model(plan)

    def add_note(self, text: str) -> bool:
        if self._welcome is not None:
            self.append(self._welcome, text)
        return self._welcome is not None

    def _begin(self) -> None:
        """Before the first turn, remove the welcome text, but keep the notes shown with it."""
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


class LiveReply:
    """Streams one reply into a transcript: `take` only stores text, `paint` shows it."""

    def __init__(
        self,
        view: ConversationView,
        turn: Turn | None = None,
        pieces: Sequence[Piece] = (),
        passages: Passages = NO_PASSAGES,
    ) -> None:
        """turn: a reply to continue, with its `pieces`. passages: the passages that it may cite."""
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
        self._turn = self._turn or delta.request_id  # a new reply's turn has the id of its request
        self._start = self._start or time.monotonic() - self._thinking_seconds
        self._unpainted[delta.thinking].append(delta.text)
        if delta.thinking:
            self._thinking_tokens = self._tokens_before + delta.tokens

    def take_use(self, event: UseChanged) -> None:
        """Show a call or its new state; text that follows is a separate part of the reply."""
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
        """Show the text stored since the last call; return whether there was any."""
        thought, reply = ("".join(self._unpainted[kind]) for kind in (True, False))
        self._unpainted = {True: [], False: []}
        if thought:
            self._show_thought(thought)
        if reply:
            self._show_reply(reply)
        return bool(thought or reply)

    def finish(self, turn: Turn, branch: tuple[int, int]) -> None:
        """Show the remaining text and how the reply ended. branch: see `pieces_of`."""
        self.paint()
        if self._thought is not None:
            self._thought.finish(*_thought_figures(turn))
        for use in (use for part in turn.rounds for use in part.uses):
            if use.id in self._calls:
                self._calls[use.id].show(use)
                self._calls[use.id].finish()
            else:  # not executed, because the reply was cut off
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
            # Models often begin with a blank line or two.
            text = text.lstrip("\n")
            self._reply = ReplyPiece(passages=self._passages)
            self._texts.append(self._reply)
            self._view.add(*_of_turn(self._turn, [self._reply]))
        self._view.append(self._reply, text)
