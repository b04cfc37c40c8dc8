"""The conversation that a run begins or continues."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from edgechat.base.errors import ChatBusy, ChatNotFound, FolderError, StoreError
from edgechat.chat.conversation import Conversation
from edgechat.chat.session import ChatSession


@dataclass(frozen=True, slots=True)
class ConversationChoice:
    """Which conversation: a new one, unless `last` (of the command line) or `chat` (an id) is given."""

    last: bool = False
    chat: str | None = None
    keep: bool = True
    """False: nothing of it is stored."""

    @property
    def is_new(self) -> bool:
        """Whether it is a new one."""
        return not self.last and self.chat is None

    @property
    def as_option(self) -> str:
        """The option that chooses it, with a space before it; empty for a new one."""
        if self.chat is not None:
            return f" --chat {shlex.quote(self.chat)}"
        return " --continue" if self.last else ""


async def chosen_conversation(
    session: ChatSession, choice: ConversationChoice, system: str | None
) -> Conversation:
    """Return the chosen conversation. Raises ChatNotFound, ChatBusy and StoreError."""
    if choice.is_new:
        return await session.begin(system)
    store = await session.store()
    chat = await store.latest("run") if choice.chat is None else await store.find(choice.chat)
    if chat is None:
        raise ChatNotFound(
            "There is no earlier conversation of the command line to continue.",
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
    """Suggest --no-store if a new conversation cannot be stored."""
    try:
        yield
    except (StoreError, FolderError) as error:
        if not choice.is_new or not choice.keep:
            raise
        # First, since other hints may end with a command, of which it would seem to be an option.
        hint = " ".join(filter(None, ("With --no-store, nothing is stored on disk.", error.hint)))
        raise type(error)(error.message, hint=hint) from error
