"""Options for `edgechat run`, and the conversation that it starts or continues."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgechat.base.errors import ChatBusy, ChatNotFound, FolderError, StoreError
from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import CommandLineOptions
from edgechat.chat.session import ChatSession
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest
from edgechat.settings import Settings

T = TypeVar("T")


class Background:
    """Runs an event loop in a daemon thread, so that the main thread can handle input and Ctrl+C."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="engine").start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start running a coroutine, and return a future for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result, or raise its error."""
        return self.begin(work).result()


@dataclass(frozen=True, slots=True)
class ConversationChoice:
    """Which conversation to use: a new one, the latest on the command line, or one given by ID (`chat`)."""

    last: bool = False
    chat: str | None = None
    keep: bool = True
    """Whether to store the conversation."""

    @property
    def is_new(self) -> bool:
        """Whether the conversation is new."""
        return not self.last and self.chat is None

    @property
    def as_option(self) -> str:
        """The command-line option for this choice, preceded by a space; '' for a new conversation."""
        if self.chat is not None:
            return f" --chat {shlex.quote(self.chat)}"
        return " --continue" if self.last else ""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Command-line options. Options that were not given are None or have their default values."""

    model: str | None = None
    prompt: str | None = None
    images: Sequence[str | bytes] = ()
    """Images to send with the first question, as paths or piped bytes."""
    system: str | None = None
    generation: CommandLineOptions = field(default_factory=CommandLineOptions)
    request: PlanRequest = DEFAULT_REQUEST
    """How to load the model."""
    choice: ConversationChoice = field(default_factory=ConversationChoice)
    json: bool = False
    raw: bool = False
    """Whether to leave Markdown unrendered in a terminal."""
    tools: str | None = None
    """The selection of tools, as typed. See `chat_tools.choice`."""
    yes: Sequence[str] = ()
    """Tools that may be called without asking. See `NamedPermission`."""
    screen_reader: bool = False
    interactive: bool = False
    """Whether to hold a conversation even if input is piped in."""

    def new_system(self, settings: Settings) -> str | None:
        """Return the system prompt to use in a new conversation."""
        return settings.system if self.system is None else self.system


async def chosen_conversation(
    session: ChatSession, choice: ConversationChoice, system: str | None
) -> Conversation:
    """Return the conversation that was chosen. Raises ChatNotFound, ChatBusy or StoreError."""
    if choice.is_new:
        return await session.begin(system)
    store = await session.store()
    chat = await store.latest("run") if choice.chat is None else await store.find(choice.chat)
    if chat is None:
        raise ChatNotFound(
            "There is no earlier command-line conversation to continue.",
            hint='To start one: edgechat run guide "PROMPT". To continue another conversation: --chat ID.',
        )
    conversation = await session.open(chat.id)
    if conversation.written_elsewhere:
        raise ChatBusy(
            f"Another edgechat is generating an answer in the conversation {chat.title!r}.",
            hint="Wait until it has finished, or choose another conversation: edgechat chats",
        )
    if system is not None:
        how = "already has a system prompt" if conversation.system else "was started without a system prompt"
        raise ChatNotFound(
            f"The conversation {chat.title!r} {how}.",
            hint="Omit --system to continue it, or omit --continue and --chat to start a new conversation.",
        )
    return conversation


@contextlib.contextmanager
def hinting_at_no_store(choice: ConversationChoice) -> Iterator[None]:
    """Suggest --no-store when an error occurs because a new conversation cannot be stored."""
    try:
        yield
    except (StoreError, FolderError) as error:
        if not choice.is_new or not choice.keep:
            raise
        # This part goes first, because the other hint may end with a command.
        hint = " ".join(filter(None, ("With --no-store, nothing is stored on disk.", error.hint)))
        raise type(error)(error.message, hint=hint) from error
