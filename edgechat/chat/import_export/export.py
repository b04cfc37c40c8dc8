"""A conversation as Markdown for people, and as JSON to be imported again (see `importing`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from edgechat.base.text import escaped_json, flat, printable
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.format import ExportedChat, ExportedFile, ExportedTurn
from edgechat.chat.messages import fenced
from edgechat.chat.records import Chat

_ENDINGS = {
    "stopped": "(stopped here)",
    "interrupted": "(interrupted here)",
    "failed": "(no reply)",
    "streaming": "(still being generated)",
}


def to_markdown(conversation: Conversation) -> str:
    """Return the line that is shown as Markdown, without control characters."""
    return printable("\n\n".join(_paragraphs(conversation))) + "\n"


def to_json(conversation: Conversation) -> str:
    """Return a whole conversation, without its id, as JSON of an `ExportedFile`."""
    file = ExportedFile(
        chat=msgspec.convert(conversation.chat, ExportedChat, from_attributes=True),
        turns=msgspec.convert(conversation.all_turns, tuple[ExportedTurn, ...], from_attributes=True),
        leaf=conversation.turns[-1].id if conversation.turns else None,
    )
    return escaped_json(msgspec.json.format(msgspec.json.encode(file), indent=1).decode()) + "\n"


def counted(messages: int) -> str:
    """Return a number of messages as text."""
    return "1 message" if messages == 1 else f"{messages} messages"


def model_name(chat: Chat) -> str:
    """Return the name of a chat's model, without the folder of a file."""
    return os.path.basename(chat.model) if os.path.isabs(chat.model) else chat.model


def _paragraphs(conversation: Conversation) -> Iterator[str]:
    chat = conversation.chat
    yield f"# {flat(chat.title)}"
    about = [chat.id, f"started on {chat.date}", counted(conversation.n_messages)]
    # Several models may have answered; only the last one is known.
    yield " · ".join([*about, f"last model: {flat(model_name(chat))}"] if chat.model else about)
    speakers = {"system": "System prompt", "user": "You", "assistant": "Answer"}
    for turn in conversation.turns:
        yield f"## {speakers[turn.role]}"
        yield from map(fenced, turn.attachments)
        if turn.content:
            yield turn.content.strip("\n")
        if turn.state in _ENDINGS:
            yield _ENDINGS[turn.state]
