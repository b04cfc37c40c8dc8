"""Protocols of the chat's views, so that the controller runs without a terminal."""

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
"""Number of a turn among its branches, from 0, and their count."""


class ReplyView(Protocol):
    """A reply while it is generated."""

    def take(self, delta: Delta) -> None:
        """Take more text, without showing it."""

    def take_use(self, event: UseChanged) -> None:
        """Show a call, or its new state."""

    def paint(self) -> bool:
        """Show the text taken since the last call; return whether there was any."""

    def finish(self, turn: Turn, branch: Branch) -> None:
        """Show the rest of the text, and how the reply ended."""


class TranscriptView(Protocol):
    """The transcript of one conversation. It is kept up to date while another one is shown."""

    def show_turns(self, turns: Sequence[tuple[Turn, Branch]], *, keep_problems: bool = False) -> None:
        """Replace all turns. keep_problems: leave error messages below them."""

    def add_turns(self, turns: Sequence[Turn]) -> None: ...

    def add_problem(self, error: EdgechatError) -> None:
        """Append an error message."""

    def show_model(self, plan: LoadPlan) -> None:
        """Show which model answers, at the top of a new conversation."""

    def add_note(self, text: str) -> bool:
        """Show a note at the top of a new conversation; return whether there is room for it."""

    def mark_left_out(self, turns: Sequence[Turn]) -> None:
        """Draw the line below the turns that are no longer sent to the model."""

    def new_reply(self) -> ReplyView: ...

    def resume_reply(self, turn: Turn) -> ReplyView:
        """Return a view of the rest of a reply that ended early, and hide how it ended."""

    def follow_end(self) -> None:
        """Scroll to the end, and stay there as text is added."""

    async def painted(self) -> None:
        """Wait until all additions are on the screen."""


class PromptView(Protocol):
    """The prompt."""

    attachments: list[Attachment]
    images: list[AttachedImage]

    @property
    def text(self) -> str:
        """What is in the box."""

    @property
    def unsent(self) -> str:
        """The text typed by the user, without an earlier question shown from the history."""

    def put(
        self,
        text: str,
        attachments: Sequence[Attachment],
        images: Sequence[AttachedImage] = (),
        title: str = "",
    ) -> None:
        """Replace the content. title: shown above the box."""

    def fill(self, text: str) -> None:
        """Replace the text."""

    def show_waiting(self, questions: Sequence[str]) -> None:
        """Show the waiting questions, the next one first."""

    def attach(self, attached: Attachment | AttachedImage) -> None:
        """Attach to the next question. Raises AttachmentError if there are too many."""

    async def attach_file(self, path: str) -> None:
        """Attach a file, or a list of the files in a folder. Raises AttachmentError and ImageError."""

    async def attach_image(self, path: str) -> None:
        """Attach an image. Raises AttachmentError and ImageError."""

    def select_variable(self) -> None:
        """Select the first {variable} of a saved prompt in the box, if there is one."""

    def quote(self, text: str) -> None: ...

    def remember(self, questions: Sequence[str]) -> None:
        """Offer these questions as history, the newest first."""

    def forget_history(self) -> None:
        """Forget the history; it is requested again when needed."""

    def take_focus(self) -> None: ...


class Status(Protocol):
    """The state of a conversation that the status lines show."""

    activity: tuple[str, float | None, float | None]
    """Activity in words (empty: none), and the share done (0 to 1), if known.

    While a prompt is read, also the share that was cached.
    """
    used: int | None
    """Tokens in the context; None if unknown."""
    speed: float
    """Tokens per second of the current or last reply; 0 if unknown."""
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
        """Whether thinking is switched on or off; None: neither."""

    @property
    def tools(self) -> Sequence[str]:
        """Tools that the model may call."""

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
        """Whether the screen is mounted; nothing is shown after it is closed."""

    @property
    def is_current(self) -> bool:
        """Whether no other screen is in front of it."""

    @property
    def pane(self) -> PromptView: ...

    def run_in_background(self, work: Coroutine[Any, Any, object], *, ignore_errors: bool = False) -> None:
        """Run a coroutine. An EdgechatError goes to `show_error`, other errors end the app.

        ignore_errors: neither happens.
        """

    # Messages and questions.

    def show_message(self, message: str, *, warning: bool = False, seconds: float = 5) -> None:
        """Show a message beside the chat for some seconds."""

    def clear_messages(self) -> None:
        """Remove the messages beside the chat."""

    def warn(self, message: str) -> None:
        """Show a warning beside the chat."""

    def show_error(self, error: EdgechatError) -> None: ...

    def announce(self, message: str) -> None:
        """Notify a user who is looking at another window."""

    async def confirm(self, question: str, *, yes: str, no: str) -> bool:
        """Ask a yes-or-no question. yes, no: labels of the answers."""

    async def ask_consent(self, question: Question, chat: str) -> Answer | None:
        """Ask whether a call may be made. Returns None to stop the reply.

        chat: the title of its conversation if that is not shown. Cancelling this withdraws the question.
        """

    async def choose_model(self, title: str, models: Sequence[tuple[str, str]]) -> str | None:
        """Let the user choose one of these models, each with a short description. Returns None for none."""

    def show_passages(self, passages: Sequence[Attachment], number: int = 0) -> None:
        """Show passages of documents, beginning with the one of this number."""

    async def compare(self, versions: Sequence[Turn], shown: int) -> int | None:
        """Show versions of a turn side by side; return the number of the chosen one, if any."""

    # The conversation.

    def new_transcript(self, *, is_new: bool) -> TranscriptView:
        """Return a transcript for a new or a stored conversation, not shown yet."""

    def show_transcript(self, transcript: TranscriptView, turn: str = "") -> None:
        """Show a transcript instead of the current one, at its end or at a turn."""

    def point_at(self, turn: str) -> None:
        """Scroll to a turn."""

    def show_status(self, status: Status) -> None:
        """Show the state of a conversation in the status lines."""

    def show_finished(self, finished: Finished) -> None:
        """Show the figures of a reply."""

    def refresh_chat(self) -> None:
        """Update what depends on the controller: title, list of conversations, keys."""

    # Models.

    def show_model(self, plan: LoadPlan) -> None:
        """Show the model that answers from now on."""

    def show_loaded(self) -> None:
        """Show the model that is loaded now, in detail."""

    def show_downloads(self, line: str) -> None:
        """Show the progress of downloads; empty: none."""

    def show_notice(self, text: str) -> None:
        """Show a text above the prompt until it is replaced; empty: none."""

    def show_first_run(self) -> None:
        """Offer models to choose from."""

    # The rest of the app.

    @property
    def clipboard(self) -> str:
        """Text that was copied last."""

    def copy(self, text: str) -> None: ...

    def toggle_thought(self, turn: str) -> None:
        """Show or hide the thinking of a turn."""

    async def restore_panels(self) -> None:
        """Show the panels of the last session. Raises StoreError."""

    # Commands.

    async def run_action(self, action: str) -> None:
        """Run an action of the screen or the app: 'screen.models'."""

    async def search(self, words: str) -> None:
        """Search all conversations. Raises StoreError."""

    def find(self, words: str) -> bool:
        """Go to words in the conversation on the screen; return whether they occur."""

    async def edit_prompt(self) -> None:
        """Edit the prompt in the user's editor. Raises EditorError."""

    async def set_theme(self, name: str) -> None:
        """Change the colours. Raises SettingsError."""
