"""What the chat's controller asks of the screen, as protocols: it runs without a terminal."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from edgechat.base.errors import EdgechatError
from edgechat.chat.records import AttachedImage, Attachment, Turn
from edgechat.chat.reply.calls import UseChanged
from edgechat.engine.types import Delta, Finished
from edgechat.planner.plan import LoadPlan
from edgechat.tools.consent import Answer, Question

Branch = tuple[int, int]
"""Which of the branches a turn is (from 0), and how many there are."""


class ReplyView(Protocol):
    """A reply while it is generated."""

    def take(self, delta: Delta) -> None:
        """Remember more text."""

    def take_use(self, event: UseChanged) -> None:
        """Show a call, or what has become of it."""

    def paint(self) -> bool:
        """Show the text taken since the last call; return whether there was any."""

    def finish(self, turn: Turn, branch: Branch) -> None:
        """Show the rest, and how the reply ended."""


class TranscriptView(Protocol):
    """The transcript of one conversation. It is kept up to date while another one is shown."""

    def show_turns(self, turns: Sequence[tuple[Turn, Branch]], *, keep_problems: bool = False) -> None:
        """Show these turns in place of the present ones. keep_problems: leave error messages below them."""

    def add_turns(self, turns: Sequence[Turn]) -> None:
        """Append turns."""

    def add_problem(self, error: EdgechatError) -> None:
        """Append an error message."""

    def show_model(self, plan: LoadPlan) -> None:
        """Show at the top of a new conversation which model answers; others do not show it."""

    def add_note(self, text: str) -> bool:
        """Show a note at the top of a new conversation; return whether there is room for it."""

    def mark_left_out(self, turns: Sequence[Turn]) -> None:
        """Draw the line below the turns that the model is not sent any more."""

    def new_reply(self) -> ReplyView:
        """Return what shows the next reply."""

    def resume_reply(self, turn: Turn) -> ReplyView:
        """Return what shows the rest of a reply that ended early; how it ended is not shown any more."""

    def follow_end(self) -> None:
        """Scroll to the end, and stay there as text is added."""

    async def painted(self) -> None:
        """Return when what was added is on the screen."""


class PromptView(Protocol):
    """The prompt."""

    attachments: list[Attachment]
    images: list[AttachedImage]

    @property
    def text(self) -> str:
        """What is in the box."""

    @property
    def unsent(self) -> str:
        """What the user has typed: not an earlier question that is only looked at again."""

    def put(
        self,
        text: str,
        attachments: Sequence[Attachment],
        images: Sequence[AttachedImage] = (),
        title: str = "",
    ) -> None:
        """Hold this in place of what was there. title: shown above the box."""

    def fill(self, text: str) -> None:
        """Hold this text in place of the present one."""

    def show_waiting(self, questions: Sequence[str]) -> None:
        """Show the questions that wait to be sent, the next one first."""

    def attach(self, attached: Attachment | AttachedImage) -> None:
        """Send this along with the next question. Raises AttachmentError if there are too many."""

    def select_variable(self) -> None:
        """Select the first {variable} of a saved prompt in the box, if there is one."""

    def quote(self, text: str) -> None:
        """Append a text as a quotation."""

    def remember(self, questions: Sequence[str]) -> None:
        """Offer these questions as history, the newest first."""

    def forget_history(self) -> None:
        """Ask for the history again when it is next wanted."""

    def take_focus(self) -> None:
        """Direct the keys to the box."""


class Status(Protocol):
    """The state of a conversation that the status lines show."""

    activity: tuple[str, float | None, float | None]
    """What is being done, in words (empty: nothing), and the share of it that is done (0 to 1), if known.

    Of a prompt that is read also the share that was in the cache already.
    """
    used: int | None
    """Tokens in the context; None if unknown."""
    speed: float
    """Tokens per second of the present or the last reply; 0 if unknown."""
    speedup: float
    """Speed of the last reply relative to plain decoding; 0 without drafts."""

    @property
    def id(self) -> str:
        """The id of the conversation; empty before its first question."""

    @property
    def is_answering(self) -> bool:
        """Whether a reply is being generated."""

    @property
    def think(self) -> bool | None:
        """How thinking is switched; None: not at all."""

    @property
    def tools(self) -> Sequence[str]:
        """What the model may call."""

    @property
    def adapters(self) -> Sequence[str]:
        """The LoRA adapters that are applied."""

    @property
    def context(self) -> int:
        """The context length of the loaded model, in tokens; 0 if none is loaded."""


class ChatView(Protocol):
    """The chat screen."""

    @property
    def is_open(self) -> bool:
        """Whether the screen is mounted; afterwards nothing is shown any more."""

    @property
    def is_current(self) -> bool:
        """Whether no other screen is in front of it."""

    @property
    def pane(self) -> PromptView:
        """The prompt."""

    def run_in_background(self, work: Coroutine[Any, Any, object], *, ignore_errors: bool = False) -> None:
        """Run a coroutine. An EdgechatError goes to `show_error`, others end the app.

        ignore_errors: neither happens.
        """

    # Messages and questions.

    def show_message(self, message: str, *, warning: bool = False, seconds: float = 5) -> None:
        """Show a message beside the chat for some seconds."""

    def clear_messages(self) -> None:
        """Remove the messages beside the chat, whose cause is gone."""

    def warn(self, message: str) -> None:
        """Show a warning beside the chat."""

    def show_error(self, error: EdgechatError) -> None:
        """Show an error beside the chat."""

    def announce(self, message: str) -> None:
        """Tell the user something who is looking at another window."""

    async def confirm(self, question: str, *, yes: str, no: str) -> bool:
        """Ask a question, with the labels of its two answers."""

    async def ask_consent(self, question: Question, chat: str) -> Answer | None:
        """Ask whether a call may be made; None: the reply is to be stopped.

        chat: the title of its conversation if that is not shown. Cancelling this withdraws the question.
        """

    async def choose_model(self, title: str, models: Sequence[tuple[str, str]]) -> str | None:
        """Let the user choose one of these models, each with a few words about it; None: no one."""

    def show_passages(self, passages: Sequence[Attachment], number: int = 0) -> None:
        """Show passages of documents, first the one with this number, if any has it."""

    async def compare(self, versions: Sequence[Turn], shown: int) -> int | None:
        """Show versions of a turn side by side; return the number of the one that is chosen, if any."""

    # The conversation.

    def new_transcript(self, *, is_new: bool) -> TranscriptView:
        """Return the transcript of a new or a stored conversation, which is not shown yet."""

    def show_transcript(self, transcript: TranscriptView, turn: str = "") -> None:
        """Show a transcript in place of the present one, at its end or at a turn."""

    def point_at(self, turn: str) -> None:
        """Scroll to a turn of the transcript that is shown."""

    def show_status(self, status: Status) -> None:
        """Show the state of the conversation that is shown."""

    def show_finished(self, finished: Finished) -> None:
        """Show what a reply took."""

    def refresh_chat(self) -> None:
        """Show again what follows from the controller's state: busy or not, the list, the keys."""

    # Models.

    def show_model(self, plan: LoadPlan) -> None:
        """Show the model that answers from now on."""

    def show_loaded(self) -> None:
        """Show the model that is loaded now, in detail."""

    def show_downloads(self, line: str) -> None:
        """Show how far the downloads are; empty: there are none."""

    def show_notice(self, text: str) -> None:
        """Show a text above the prompt until it is replaced; empty: none."""

    def show_first_run(self) -> None:
        """Offer models to choose from."""

    # The rest of the app.

    @property
    def clipboard(self) -> str:
        """What was copied last."""

    def copy(self, text: str) -> None:
        """Put a text on the clipboard."""

    def toggle_thought(self, turn: str) -> None:
        """Show or hide the thinking of a turn."""

    async def restore_panels(self) -> None:
        """Show the panels that were shown last time. Raises StoreError."""

    async def run_screen_command(self, command: str, argument: str) -> None:
        """Run a slash command that concerns the screen alone. Raises EdgechatError."""
