"""Converts database rows to records, and back.

A JSON column that is damaged, or was written by a newer edgechat, is ignored, so that the conversation can
still be listed, found and opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from edgechat.base.process.owner import Owner
from edgechat.chat.records import AttachedImage, Attachment, Chat, ChatSettings, Figures, ToolRound, Turn
from edgechat.engine.types import ErrorInfo
from edgechat.settings import SamplingDefaults

T = TypeVar("T")

_CHAT_FIELDS = Chat.__struct_fields__
CHAT = ", ".join(_CHAT_FIELDS)
CHAT_MARKS = ", ".join("?" * len(_CHAT_FIELDS))
CHAT_OF_C = ", ".join(f"c.{name}" for name in _CHAT_FIELDS)
N_CHAT = len(_CHAT_FIELDS)
_TURN_FIELDS = tuple(name for name in Turn.__struct_fields__ if name != "images")
"""All fields except images, which have their own table."""
TURN = ", ".join(_TURN_FIELDS).replace("chat_id", "conversation_id")


def as_json(value: object) -> str | None:
    """Return a value as JSON for a column, or None (NULL) for None or an empty tuple."""
    return None if value is None or value == () else msgspec.json.encode(value).decode()


def chat_values(chat: Chat) -> tuple[Any, ...]:
    """Return the values for the columns in CHAT."""
    values = msgspec.structs.asdict(chat) | {"settings": as_json(chat.settings)}
    return tuple(values.values())


def chat_of(row: tuple[Any, ...]) -> Chat:
    """Return the chat in a row with CHAT's columns."""
    values = dict(zip(_CHAT_FIELDS, row, strict=True))
    settings = ChatSettings() if values["settings"] == "{}" else settings_of(values["settings"])
    return Chat(**(values | {"pinned": bool(values["pinned"]), "settings": settings}))


def turn_values(turn: Turn) -> tuple[Any, ...]:
    """Return the values for the columns in TURN."""
    *texts, figures, error, attachments, rounds = (getattr(turn, name) for name in _TURN_FIELDS)
    return (*texts, as_json(figures), as_json(error), as_json(attachments), as_json(rounds))


def turn_of(row: tuple[Any, ...], images: Sequence[AttachedImage] = ()) -> Turn:
    """Return the turn in a row with TURN's columns, adding its images."""
    values = dict(zip(_TURN_FIELDS, row, strict=True))
    values["figures"] = _read(values["figures"], Figures)
    values["error"] = _read(values["error"], ErrorInfo)
    values["attachments"] = attachments_of(values["attachments"])
    values["rounds"] = rounds_of(values["rounds"])
    return Turn(**values, images=tuple(images))


def attachments_of(text: str | None) -> tuple[Attachment, ...]:
    """Parse the attachments of a turn."""
    return _read(text, tuple[Attachment, ...]) or ()


def rounds_of(text: str | None) -> tuple[ToolRound, ...]:
    """Parse the parts of a reply that called tools."""
    return _read(text, tuple[ToolRound, ...]) or ()


def owner_of(text: str | None) -> Owner | None:
    """Parse the owner of a turn, the process that is writing it."""
    return _read(text, Owner)


def settings_of(text: str) -> ChatSettings:
    """Parse the settings of a chat, ignoring invalid ones."""
    settings = _read(text, ChatSettings)
    if settings is not None:
        return settings
    table = _read(text, dict[str, Any]) or {}
    think, sampling, tools = table.get("think"), table.get("sampling"), table.get("tools")
    fields = {field.name: field.type for field in msgspec.structs.fields(SamplingDefaults)}
    values: dict[str, Any] = {}
    for name, value in sampling.items() if isinstance(sampling, dict) else ():
        try:
            values[name] = msgspec.convert(value, fields[name])
        except (KeyError, msgspec.ValidationError):
            continue
    names = tools if isinstance(tools, list) else []
    return ChatSettings(
        think=think if isinstance(think, bool) else None,
        sampling=SamplingDefaults(**values),
        tools=tuple(name for name in names if isinstance(name, str)),
    )


def _read(text: str | None, kind: type[T]) -> T | None:
    """Parse a JSON column; return None if it is not valid."""
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.DecodeError, RecursionError):  # including ValidationError
        return None
