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
    """Which conversation: a new one, unless `last` (of the command line's) or `chat` (an id) is given."""

    last: bool = False
    chat: str | None = None
    keep: bool = True
    """False: it leaves no trace."""

    @property
    def is_new(self) -> bool:
        """Whether it begins now."""
        return not self.last and self.chat is None

    @property
    def as_option(self) -> str:
        """What the command line says of it, with a space before it; empty for a new one."""
        if self.chat is not None:
            return f" --chat {shlex.quote(self.chat)}"
        return " --continue" if self.last else ""


async def conversation(session: ChatSession, wanted: ConversationChoice, system: str | None) -> Conversation:
    """Return the conversation that is wanted. Raises ChatNotFound, ChatBusy and StoreError."""
    if wanted.is_new:
        return await session.begin(system)
    store = await session.store()
    chat = await store.latest("run") if wanted.chat is None else await store.find(wanted.chat)
    if chat is None:
        raise ChatNotFound(
            "There is no earlier conversation of the command line to continue.",
            hint='To start one: edgechat run guide "PROMPT". To continue another conversation: --chat ID.',
        )
    found = await session.open(chat.id)
    if found.written_elsewhere:
        raise ChatBusy(
            f"Another edgechat is generating an answer in the conversation {chat.title!r}.",
            hint="Wait until it has finished, or choose another conversation: edgechat chats",
        )
    if system is not None:
        how = "already has a system prompt" if found.system else "was started without a system prompt"
        raise ChatNotFound(
            f"The conversation {chat.title!r} {how}.",
            hint="Omit --system to continue it, or omit --continue and --chat to start a new conversation.",
        )
    return found


@contextlib.contextmanager
def offering_not_to_keep(wanted: ConversationChoice) -> Iterator[None]:
    """Tell, where a conversation cannot be kept, how to ask all the same."""
    try:
        yield
    except (StoreError, FolderError) as error:
        if not wanted.is_new or not wanted.keep:
            raise
        # First, for other hints may end with a command, of which it would seem to be an option.
        way_out = "With --no-store, nothing is stored on disk."
        raise type(error)(error.message, hint=" ".join(filter(None, (way_out, error.hint)))) from error
