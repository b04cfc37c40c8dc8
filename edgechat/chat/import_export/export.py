"""A conversation as a file: Markdown for people, JSON to be read again (see `importing`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from edgechat.base.text import escaped_json, flat, printable
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.format import ExportedChat, ExportedFile, ExportedTurn
from edgechat.chat.messages import fenced
from edgechat.chat.records import Chat, Turn

_ENDINGS = {
    "stopped": "(stopped here)",
    "interrupted": "(interrupted here)",
    "failed": "(no reply)",
    "streaming": "(still being generated)",
}


def to_markdown(conversation: Conversation) -> str:
    """Return the line that is shown, without control characters."""
    return printable("\n\n".join(_paragraphs(conversation))) + "\n"


def to_json(conversation: Conversation) -> str:
    """Return all that is kept of a conversation but its id, as JSON of one `ExportedFile`."""
    chat = conversation.chat
    filed = ExportedFile(
        chat=ExportedChat(**{name: getattr(chat, name) for name in ExportedChat.__struct_fields__}),
        turns=tuple(map(_filed, conversation.all_turns)),
        leaf=conversation.turns[-1].id if conversation.turns else None,
    )
    return escaped_json(msgspec.json.format(msgspec.json.encode(filed), indent=1).decode()) + "\n"


def counted(messages: int) -> str:
    """Return how many messages these are, in words."""
    return "1 message" if messages == 1 else f"{messages} messages"


def model_name(chat: Chat) -> str:
    """Return what the model is called, without the folder of a file."""
    return os.path.basename(chat.model) if os.path.isabs(chat.model) else chat.model


def _filed(turn: Turn) -> ExportedTurn:
    return ExportedTurn(**{name: getattr(turn, name) for name in ExportedTurn.__struct_fields__})


def _paragraphs(found: Conversation) -> Iterator[str]:
    chat = found.chat
    yield f"# {flat(chat.title)}"
    about = [chat.id, f"started on {chat.date}", counted(found.n_messages)]
    # Models may take turns in a chat, and only the last one is known.
    yield " · ".join([*about, f"last model: {flat(model_name(chat))}"] if chat.model else about)
    speakers = {"system": "System prompt", "user": "You", "assistant": "Answer"}
    for turn in found.turns:
        yield f"## {speakers[turn.role]}"
        yield from map(fenced, turn.attachments)
        if turn.content:
            yield turn.content.strip("\n")
        if turn.state in _ENDINGS:
            yield _ENDINGS[turn.state]
