"""From the rows of the file to records, and back.

A column of JSON that is damaged, or that only a newer edgechat understands, costs what it says and no more:
the conversation is listed, found and opened without.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from edgechat.base.process.owner import Owner
from edgechat.chat.records import Attachment, Chat, ChatSettings, Figures, Turn
from edgechat.engine.types import ErrorInfo
from edgechat.settings import SamplingDefaults

T = TypeVar("T")

_CHAT_FIELDS = Chat.__struct_fields__
CHAT = ", ".join(_CHAT_FIELDS)
CHAT_MARKS = ", ".join("?" * len(_CHAT_FIELDS))
CHAT_OF_C = ", ".join(f"c.{name}" for name in _CHAT_FIELDS)
N_CHAT = len(_CHAT_FIELDS)
TURN = (
    "id, conversation_id, role, content, thinking, state, parent_id, created_at, figures, error, attachments"
)


def as_json(value: object) -> str | None:
    """Return what a column of JSON holds for a value; NULL for None and for an empty tuple."""
    return None if value is None or value == () else msgspec.json.encode(value).decode()


def chat_values(chat: Chat) -> tuple[Any, ...]:
    """Return the values of CHAT's columns."""
    found = msgspec.structs.asdict(chat) | {"settings": as_json(chat.settings)}
    return tuple(found.values())


def chat_of(row: tuple[Any, ...]) -> Chat:
    """Return the chat of a row of CHAT's columns."""
    found = dict(zip(_CHAT_FIELDS, row, strict=True))
    settings = ChatSettings() if found["settings"] == "{}" else settings_of(found["settings"])
    return Chat(**(found | {"pinned": bool(found["pinned"]), "settings": settings}))


def turn_values(turn: Turn) -> tuple[Any, ...]:
    """Return the values of TURN's columns."""
    return (
        turn.id,
        turn.chat_id,
        turn.role,
        turn.content,
        turn.thinking,
        turn.state,
        turn.parent_id,
        turn.created_at,
        as_json(turn.figures),
        as_json(turn.error),
        as_json(turn.attachments),
    )


def turn_of(row: tuple[Any, ...]) -> Turn:
    """Return the turn of a row of TURN's columns."""
    turn_id, chat_id, role, content, thinking, state, parent_id, created_at, figures, error, attached = row
    return Turn(
        id=turn_id,
        chat_id=chat_id,
        role=role,
        content=content,
        thinking=thinking,
        state=state,
        parent_id=parent_id,
        created_at=created_at,
        figures=_read(figures, Figures),
        error=_read(error, ErrorInfo),
        attachments=attachments_of(attached),
    )


def attachments_of(text: str | None) -> tuple[Attachment, ...]:
    """Return the attachments of a turn."""
    return _read(text, tuple[Attachment, ...]) or ()


def owner_of(text: str | None) -> Owner | None:
    """Return who writes a turn."""
    return _read(text, Owner)


def settings_of(text: str) -> ChatSettings:
    """Return the settings of a chat, as far as they are understood."""
    known = _read(text, ChatSettings)
    if known is not None:
        return known
    found = _read(text, dict[str, Any]) or {}
    think, sampling = found.get("think"), found.get("sampling")
    fields = {field.name: field.type for field in msgspec.structs.fields(SamplingDefaults)}
    values: dict[str, Any] = {}
    for name, value in sampling.items() if isinstance(sampling, dict) else ():
        try:
            values[name] = msgspec.convert(value, fields[name])
        except (KeyError, msgspec.ValidationError):
            continue
    return ChatSettings(think=think if isinstance(think, bool) else None, sampling=SamplingDefaults(**values))


def _read(text: str | None, kind: type[T]) -> T | None:
    """Return what a column of JSON holds, or None where that is not of its kind."""
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.DecodeError, RecursionError):  # ValidationError is one
        return None
