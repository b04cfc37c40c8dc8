"""A conversation in the app: its turns as pieces, and the reply that is being written to it.

It goes on behind the screen while another one is shown, so it writes its pieces into a list of its own,
through the transcript while that shows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from edgechat.chat.commands import sent
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Attachment, ChatSettings, Turn
from edgechat.chat.session import ChatSession
from edgechat.engine.types import Finished
from edgechat.errors import EdgechatError
from edgechat.text import one_line
from edgechat.tui.chat.answer import ReplyEvents
from edgechat.tui.chat.prompt import attachments as files
from edgechat.tui.transcript.pieces import CutPiece, Piece, ProblemPiece, WelcomePiece
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.turns import cut_note, pieces_of


class UnsentPrompt(msgspec.Struct, omit_defaults=True):
    """What is in the prompt and not sent; kept in the store as JSON."""

    text: str = ""
    attachments: list[Attachment] = []
    edits: str = ""
    """The id of the question that these are other words for; empty: they are a new one."""
    aside: UnsentPrompt | None = None
    """What was in the prompt before it was wanted for this; None: it is the prompt's own."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not (self.text or self.attachments or (self.aside is not None and not self.aside.is_empty))

    def before(self, other: UnsentPrompt) -> UnsentPrompt:
        """Return this and what was written after it: as one text, or one set aside for the other."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        if self.edits or other.edits or self.aside is not None or other.aside is not None:
            aside = other if self.aside is None else self.aside.before(other)
            return msgspec.structs.replace(self, aside=aside)
        text = "\n".join(part for part in (self.text, other.text) if part)
        return UnsentPrompt(text, [*self.attachments, *other.attachments])


class ConversationView:
    """One conversation, its pieces and its running reply. A new one is stored with its first question."""

    def __init__(
        self,
        session: ChatSession,
        conversation: Conversation | None = None,
        *,
        welcome: WelcomePiece | None = None,
    ) -> None:
        self.conversation = conversation
        """None before the first question."""
        self.settings = conversation.chat.settings if conversation else ChatSettings()
        self.system: str | None = conversation.system if conversation else None
        """Of a new conversation: the system prompt that it will begin with."""
        self.welcome = welcome or WelcomePiece()
        self.pieces: list[Piece] = [] if conversation else [self.welcome]
        self.activity: tuple[str, float | None] = ("", None)
        """What goes on in words, and how much of it is done (0 to 1) where that is known."""
        self.used = 0
        """Tokens of the context that it takes."""
        self.speed = self.speedup = 0.0
        """See StatusBar."""
        self.draft = UnsentPrompt()
        """What was in the prompt when it was shown last."""
        self.unsaved: UnsentPrompt | None = None
        """A question that is on its way to the store."""
        self.on_change: Callable[[ConversationView], None] = lambda _talk: None
        """Hears that one of the above is another."""
        self.on_unsent: Callable[[ConversationView, UnsentPrompt], None] = lambda _talk, _draft: None
        """Gets back what could not be sent."""
        self.on_saved: Callable[[ConversationView], None] = lambda _talk: None
        """Hears that a question is in the store."""
        self.on_told: Callable[[str], None] = lambda _words: None
        """Hears what there is to know beside the conversation."""
        self.on_finished: Callable[[Finished], None] = lambda _finished: None
        """Hears what a reply took."""
        self._session = session
        self._transcript: Transcript | None = None
        self._answering: Worker[None] | None = None
        self._stopping = False
        if conversation is not None:
            self._show_turns()
            self._take_figures()

    # What is shown.

    def show_in(self, transcript: Transcript, *, turn: str = "") -> None:
        """Show the pieces from now on, at their end or at a turn."""
        self._transcript = transcript
        transcript.show(self.pieces, turn=turn)

    def hide(self) -> None:
        """Show nothing any more; what is being written goes on."""
        self._transcript = None

    def add(self, *pieces: Piece) -> None:
        """Append pieces."""
        if self._transcript is not None:
            self._transcript.add(*pieces)
        else:
            self.pieces += pieces

    def append(self, piece: Piece, text: str) -> None:
        """Let a piece grow."""
        if self._transcript is not None:
            self._transcript.append(piece, text)
        else:
            piece.append(text)

    async def painted(self) -> None:
        """Return when what was added is on the screen."""
        if self._transcript is not None:
            await self._transcript.wait_for_refresh()

    def note(self, text: str) -> None:
        """Say something at the top, where it parts no question from its answer: in a new one."""
        if self.welcome in self.pieces:
            self.append(self.welcome, text)

    def tell(self, words: str, share: float | None = None) -> None:
        """Say what goes on; no words: nothing does."""
        self.activity = (words, share)
        self.on_change(self)

    def tell_problem(self, error: EdgechatError) -> None:
        """Show what went wrong, and what to do."""
        self.add(ProblemPiece(error.message, error.hint))

    def draw_cut(self) -> None:
        """Draw the line below the turns that the model is not sent any more, if there are any."""
        gone = {turn.id for turn in self.conversation.left_out()} if self.conversation is not None else set()
        for piece in self.pieces:
            if piece.left != (piece.turn in gone):
                piece.mark(left=piece.turn in gone)
        pieces = [piece for piece in self.pieces if not isinstance(piece, CutPiece)]
        last = max((at for at, piece in enumerate(pieces) if piece.left), default=None)
        if last is not None:
            n_questions = sum(turn.id in gone and turn.role == "user" for turn in self._turns)
            pieces.insert(last + 1, cut_note(n_questions))
        if [piece.text for piece in pieces] != [piece.text for piece in self.pieces]:
            self._rearrange(pieces)

    def _rearrange(self, pieces: list[Piece]) -> None:
        if self._transcript is not None:
            self._transcript.rearrange(pieces)
        else:
            self.pieces[:] = pieces

    # What is said.

    @property
    def id(self) -> str:
        """The conversation's; empty before the first question."""
        return self.conversation.chat.id if self.conversation is not None else ""

    @property
    def is_stored(self) -> bool:
        """Whether anything of it is in the store."""
        return bool(self._turns)

    @property
    def answering(self) -> bool:
        """Whether a question waits for its reply to end."""
        return self._answering is not None and not self._answering.is_finished

    @property
    def can_retry(self) -> bool:
        """Whether there is a reply, or a question without one, to have another try at."""
        return not self.answering and bool(self._turns) and self._turns[-1].role != "system"

    @property
    def _turns(self) -> list[Turn]:
        return self.conversation.turns if self.conversation is not None else []

    def turn(self, turn_id: str) -> Turn | None:
        """Return the turn of that id that is shown."""
        return next((turn for turn in self._turns if turn.id == turn_id), None)

    def runs(self, answering: Worker[None]) -> None:
        """Note what answers from now on: a worker of `ask` or `retry`."""
        self._stopping = False
        self._answering = answering

    async def ask(self, draft: UnsentPrompt) -> None:
        """Save a question, or other words for one, and stream the reply; else give it back."""
        known = len(self._turns)
        if not await self._save(draft):
            return
        if draft.edits:
            self._show_turns()
        else:
            # Before the question comes what `edgechat run` has said in this chat meanwhile.
            self.add(*(piece for said in self._turns[known:] for piece in pieces_of(said)))
        if self._transcript is not None:
            self._transcript.anchor()
        await self._answer(draft)

    async def _save(self, draft: UnsentPrompt) -> bool:
        """Save a question. Until it is in the store it is `unsaved`, and kept as what was not sent."""
        saved = False
        self.unsaved = draft
        try:
            attachments = await self._with_files(draft)
            conversation = await self._opened()
            if draft.edits:
                await conversation.edit(draft.edits, sent(draft.text), attachments)
            else:
                await conversation.ask(sent(draft.text), attachments)
            saved = True
            if self._stopping:
                saved = False
                await conversation.take_back_question()
        except EdgechatError as exc:
            self.tell_problem(exc)
        self.unsaved = None
        if saved:
            self.on_saved(self)
        else:
            self.tell("")
            self.on_unsent(self, draft)
        return saved

    async def _with_files(self, draft: UnsentPrompt) -> tuple[Attachment, ...]:
        """Return the attachments, and the files that the text names. Raises AttachmentError."""
        if "@" not in draft.text:
            return tuple(draft.attachments)
        had = {one.name for one in draft.attachments}
        found, missing = await asyncio.to_thread(files.named_in, draft.text, files.MOST - len(had))
        if missing:
            names = ", ".join(one_line(name, 60) for name in missing[:5])
            self.on_told(f"Not sent along, for there is no such file: {names}.")
        return (*draft.attachments, *(one for one in found if one.name not in had))

    async def retry(self, turn_id: str = "") -> None:
        """Have another try at a reply, or at the last question's; the one so far stays a branch."""
        conversation = self.conversation
        if conversation is None or not conversation.turns:
            return
        try:
            conversation.regenerate(turn_id or None)
        except EdgechatError as exc:
            self.tell_problem(exc)
            return
        self._show_turns()
        await self._answer()

    async def go_to(self, turn_id: str) -> None:
        """Show the line that a turn is on. Raises EdgechatError."""
        if self.conversation is not None and self.turn(turn_id) is None:
            await self.conversation.go_to(turn_id)
            self._show_turns()

    async def switch(self, turn_id: str, by: int) -> str | None:
        """Show the next (1) or the last (-1) try at a turn; return its id, None where there is no other."""
        conversation = self.conversation
        if conversation is None or self.answering:
            return None
        number, count = conversation.branches(turn_id)
        if not 0 <= number + by < count:
            return None
        at = next(at for at, turn in enumerate(conversation.turns) if turn.id == turn_id)
        await conversation.switch(turn_id, number + by)
        self._show_turns()
        self._take_figures()
        return conversation.turns[at].id

    async def stop(self) -> None:
        """End the reply here; asked again, or before it has begun, give it up at once.

        A question on its way to the store comes back from there.
        """
        if self._answering is None:
            return
        told = not self._stopping and self.conversation is not None and await self.conversation.stop()
        self._stopping = True
        if told or self.unsaved is not None:
            self.tell("Stopping")
        else:
            self._answering.cancel()

    async def wind_down(self) -> None:
        """Give a running reply up, and return when its words are saved."""
        if self._answering is not None and self.answering:
            self._answering.cancel()
            with suppress(WorkerCancelled, WorkerFailed):
                await self._answering.wait()

    async def change(self, settings: ChatSettings) -> None:
        """Let its replies be written so from now on. Raises EdgechatError."""
        if self.conversation is not None:
            await self.conversation.set_settings(settings)
        self.settings = settings

    async def set_system(self, text: str | None) -> None:
        """Give it another system prompt, or (None) none. Raises EdgechatError."""
        if self.conversation is not None:
            await self.conversation.set_system(text)
            self._show_turns()
        self.system = text or None

    async def _opened(self) -> Conversation:
        if self.conversation is None:
            self.conversation = await self._session.begin(self.system)
            await self.conversation.set_settings(self.settings)
        return self.conversation

    async def _answer(self, asked: UnsentPrompt | None = None) -> None:
        """Stream the reply to the last question. asked: what to give back where it turns out too long."""
        try:
            engine = await self._session.engine()
            conversation = await self._opened()
            await conversation.use_model(self._session.model or "")
            if engine.model is None and self._session.settings.think is not None:
                await engine.start(lambda share: self.tell("Loading the model", share))
            question = conversation.turns[-1]
            await ReplyEvents(self, conversation).run(engine, self._session.generation_options(self.settings))
            if question not in conversation.turns:
                self._show_turns(with_problems=True)
                self.on_unsent(self, asked or UnsentPrompt(question.content, list(question.attachments)))
            self.draw_cut()
        except EdgechatError as exc:
            self.tell_problem(exc)
        finally:
            self._put_line_back()
            self.tell("")

    def _put_line_back(self) -> None:
        """Show the reply again that another try was to stand beside, where that did not even begin."""
        if self.conversation is not None:
            before = list(self.conversation.turns)
            self.conversation.put_back()
            if self.conversation.turns != before:
                self._show_turns(with_problems=True)

    def _show_turns(self, *, with_problems: bool = False) -> None:
        """Make the pieces those of the turns, below what stands at the top."""
        conversation = self.conversation
        assert conversation is not None
        turns = [(turn, conversation.branches(turn.id)) for turn in conversation.turns]
        self._rearrange(
            [
                *(piece for piece in self.pieces if piece is self.welcome),
                *(piece for turn, branch in turns for piece in pieces_of(turn, branch)),
                *(piece for piece in self.pieces if with_problems and isinstance(piece, ProblemPiece)),
            ]
        )
        self.draw_cut()

    def _take_figures(self) -> None:
        """Say how much of the context the conversation took when it was last answered."""
        figures = next((turn.figures for turn in reversed(self._turns) if turn.figures is not None), None)
        self.used = 0
        if figures is not None and figures.usage is not None:
            self.used = figures.usage.prompt_tokens + figures.usage.completion_tokens
            self.speed = figures.timings.decode_tps if figures.timings is not None else 0.0
