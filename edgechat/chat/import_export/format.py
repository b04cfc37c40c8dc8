"""The JSON file of a conversation, as `export` writes and `importing` reads it."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.chat.records import Attachment, ChatSettings, Figures, Role, ToolRound, TurnState
from edgechat.engine.types import ErrorInfo

FORMAT: Literal["edgechat"] = "edgechat"
VERSION = 1
"""Version of what `to_json` writes; additional fields do not change it."""


class ExportedChat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat in a file."""

    title: str = ""
    model: str = ""
    date: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    pinned: bool = False
    settings: ChatSettings = ChatSettings()
    """Without tools, documents and adapters: a file turns none on, and tells no paths of a machine."""


class ExportedImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image of a question, or of a reply's results, in a file."""

    name: str
    width: int = 0
    height: int = 0
    data: bytes | None = None
    """Its file, as base64; None if that was missing."""


class ExportedTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn in a file."""

    id: str
    parent_id: str | None = None
    role: Role
    content: str
    thinking: str = ""
    state: TurnState = "complete"
    created_at: float = 0.0
    figures: Figures | None = None
    error: ErrorInfo | None = None
    attachments: tuple[Attachment, ...] = ()
    images: tuple[ExportedImage, ...] = ()
    rounds: tuple[ToolRound, ...] = ()


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in a file, with all its lines."""

    format: Literal["edgechat"] = FORMAT
    version: int = VERSION
    chat: ExportedChat
    turns: tuple[ExportedTurn, ...]
    """In the order of writing, so parents precede their children."""
    leaf: str | None = None
    """The last turn of the line that is shown."""
