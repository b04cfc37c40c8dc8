"""Protocols for the chat's views, so that the controller can run without a terminal."""

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
"""The zero-based index of this version of a turn, and the number of versions."""


class ReplyView(Protocol):
    """A reply being generated."""

    def take(self, delta: Delta) -> None:
        """Store more text, to be shown by `paint`."""

    def take_use(self, event: UseChanged) -> None:
        """Show a tool call, or its new state."""

    def paint(self) -> bool:
        """Show the text stored since the last call; return whether there was any."""

    def finish(self, turn: Turn, branch: Branch) -> None:
        """Show the remaining text and how the reply ended."""


class TranscriptView(Protocol):
    """One conversation's transcript, kept up to date even while another one is on screen."""

    def show_turns(self, turns: Sequence[tuple[Turn, Branch]], *, keep_problems: bool = False) -> None:
        """Replace all turns. keep_problems: keep error messages, below the turns."""

    def add_turns(self, turns: Sequence[Turn]) -> None: ...

    def add_problem(self, error: EdgechatError) -> None:
        """Append an error message."""

    def show_model(self, plan: LoadPlan) -> None:
        """Show the current model at the top of a new conversation."""

    def add_note(self, text: str) -> bool:
        """Show a note at the top of a new conversation; return False if the conversation is no longer new."""

    def mark_left_out(self, turns: Sequence[Turn]) -> None:
        """Draw the line below the turns that are no longer sent to the model."""

    def new_reply(self) -> ReplyView: ...

    def resume_reply(self, turn: Turn) -> ReplyView:
        """Return a view for the rest of a reply that ended early, hiding the note about how it ended."""

    def follow_end(self) -> None:
        """Scroll to the end, and stay there when text is added."""

    async def painted(self) -> None:
        """Wait until everything added is on screen."""


class PromptText(Protocol):
    """The prompt's text box."""

    text: str

    @property
    def unsent(self) -> str:
        """The text that the user typed, not counting an earlier question shown from the history."""

    def fill(self, text: str) -> None:
        """Replace the text."""

    def quote(self, text: str) -> None: ...

    def select_variable(self, after: tuple[int, int]) -> bool:
        """Select the next {variable} in a saved prompt; return whether there is one."""

    def remember(self, asked: Sequence[str]) -> None:
        """Set the history, newest question first, and show its first entry."""

    def forget_history(self) -> None:
        """Discard the history; it is requested again when needed."""

    def focus(self) -> object: ...


class PromptView(Protocol):
    """The prompt box and the prompt's attachments."""

    attachments: list[Attachment]
    images: list[AttachedImage]

    def put(
        self,
        text: str,
        attachments: Sequence[Attachment],
        images: Sequence[AttachedImage] = (),
        title: str = "",
    ) -> None:
        """Replace the content. title: shown above the box."""

    def show_waiting(self, questions: Sequence[str]) -> None:
        """Show the waiting questions, the next one first."""

    def attach(self, attached: Attachment | AttachedImage) -> None:
        """Attach a text or image to the next question. Raises AttachmentError if there are too many."""

    async def attach_file(self, path: str) -> None:
        """Attach a file, or a listing of a folder. Raises AttachmentError and ImageError."""

    async def attach_image(self, path: str) -> None:
        """Attach an image. Raises AttachmentError and ImageError."""


class Status(Protocol):
    """A conversation's state, as shown in the status lines."""

    activity: tuple[str, float | None, float | None]
    """The activity ('' if there is none), and the fraction done (0 to 1), if known.

    While a prompt is being read, the last item is the fraction of it that was cached.
    """
    used: int | None
    """Number of context tokens in use, or None if unknown."""
    speed: float
    """Tokens per second in the current or last reply, or 0 if unknown."""
    speedup: float
    """The last reply's speedup over plain decoding, or 0 without drafts."""

    @property
    def id(self) -> str:
        """The conversation's id, or '' before its first question."""

    @property
    def is_answering(self) -> bool:
        """Whether a reply is being generated."""

    @property
    def think(self) -> bool | None:
        """Whether thinking is switched on or off, or None for the model's default."""

    @property
    def tools(self) -> Sequence[str]:
        """The tools that the model may call."""

    @property
    def adapters(self) -> Sequence[str]:
        """The LoRA adapters in use."""

    @property
    def context(self) -> int:
        """The loaded model's context length in tokens, or 0 if no model is loaded."""


class ChatView(Protocol):
    """The chat screen."""

    @property
    def is_open(self) -> bool:
        """Whether the screen is still mounted; nothing may be shown after it is closed."""

    @property
    def is_current(self) -> bool:
        """Whether it is the topmost screen."""

    @property
    def pane(self) -> PromptView: ...

    @property
    def prompt(self) -> PromptText: ...

    def run_in_background(self, work: Coroutine[Any, Any, object], *, ignore_errors: bool = False) -> None:
        """Run a coroutine. An EdgechatError is passed to `show_error`; other errors end the app.

        ignore_errors: ignore errors of both kinds.
        """

    # Messages and questions.

    def show_message(self, message: str, *, warning: bool = False, seconds: float = 5) -> None:
        """Show a message beside the chat for a few seconds."""

    def clear_messages(self) -> None:
        """Remove the messages beside the chat."""

    def warn(self, message: str) -> None:
        """Show a warning beside the chat."""

    def show_error(self, error: EdgechatError) -> None: ...

    def announce(self, message: str) -> None:
        """Notify the user if they are in another window."""

    async def confirm(self, question: str, *, yes: str, no: str) -> bool:
        """Ask a yes-or-no question. yes, no: labels for the answers."""

    async def ask_consent(self, question: Question, chat: str) -> Answer | None:
        """Ask whether a tool call is allowed. Returns None if the user stops the reply.

        chat: the conversation's title if it is off screen. Cancelling this call withdraws the question.
        """

    async def choose_model(self, title: str, models: Sequence[tuple[str, str]]) -> str | None:
        """Let the user choose from models with short descriptions. Returns None if the user chooses none."""

    def show_passages(self, passages: Sequence[Attachment], number: int = 0) -> None:
        """Show document passages, opening the one with this number first."""

    async def compare(self, versions: Sequence[Turn], shown: int) -> int | None:
        """Show the versions of a turn side by side, and return the index of the chosen one, if any."""

    # The conversation.

    def new_transcript(self, *, is_new: bool) -> TranscriptView:
        """Create a transcript for a new or stored conversation, without showing it yet."""

    def show_transcript(self, transcript: TranscriptView, turn: str = "") -> None:
        """Show a transcript instead of the current one, scrolled to the end or to a turn."""

    def point_at(self, turn: str) -> None:
        """Scroll to a turn."""

    def show_status(self, status: Status) -> None:
        """Show a conversation's state in the status lines."""

    def show_finished(self, finished: Finished) -> None:
        """Show a reply's statistics."""

    def refresh_chat(self) -> None:
        """Update everything that depends on the controller: title, list of conversations, and keys."""

    # Models.

    def show_model(self, plan: LoadPlan) -> None:
        """Show which model will answer from now on."""

    def show_loaded(self) -> None:
        """Show details of the model now loaded."""

    def show_downloads(self, line: str) -> None:
        """Show a line about the progress of downloads; '' removes it."""

    def show_notice(self, text: str) -> None:
        """Show text above the prompt until it is replaced; '' removes it."""

    def show_first_run(self) -> None:
        """Offer a choice of models."""

    # The rest of the app.

    @property
    def clipboard(self) -> str:
        """The text last copied."""

    def copy(self, text: str) -> None: ...

    def toggle_thought(self, turn: str) -> None:
        """Show or hide a turn's thinking."""

    async def restore_panels(self) -> None:
        """Restore the panels from the last session. Raises StoreError."""

    # Commands.

    async def run_action(self, action: str) -> None:
        """Run an action of the screen or app, such as 'screen.models'."""

    async def search(self, words: str) -> None:
        """Search all conversations. Raises StoreError."""

    def find(self, words: str) -> bool:
        """Highlight words in this conversation and go to the first match; return whether there is one."""

    async def edit_prompt(self) -> None:
        """Open the prompt in the user's editor. Raises EditorError."""

    async def set_theme(self, name: str) -> None:
        """Change the theme. Raises SettingsError."""
