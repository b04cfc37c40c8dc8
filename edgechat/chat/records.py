"""What a conversation is made of, as it is stored and as the front ends read it."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.engine.types import ErrorInfo, FinishReason, Role, Timings, Usage

TurnState = Literal["complete", "streaming", "stopped", "interrupted", "failed"]
"""How far a turn came.

streaming: a reply is being written by a living program; stopped: its reader stopped it; interrupted: the
engine or the program ended in mid-answer, and the text so far was kept; failed: no word of it came.
"""


Front = Literal["app", "run"]
"""Where a chat was held: in the app, or on the command line (`edgechat run`)."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one reply cost. Kept with its turn as JSON."""

    reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    context: int = 0
    """Cells of the cache the reply was written in; 0 where nobody knew."""
    thinking_tokens: int = 0
    thinking_seconds: float = 0.0


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One thing said, by the user or by the model."""

    id: str
    chat_id: str
    role: Role
    content: str
    thinking: str = ""
    state: TurnState = "complete"
    parent_id: str | None = None
    """The turn this one answers; two turns of one parent are two tries."""
    created_at: float
    """Seconds since 1970, UTC."""
    figures: Figures | None = None
    error: ErrorInfo | None = None


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its turns."""

    id: str
    title: str
    model: str
    """The model that wrote last, as it was named."""
    date: str
    """The day it began (ISO), which is the day the template prints in all its turns."""
    created_at: float
    updated_at: float
    front: Front = "app"
    """Where it was held last."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a list shows it."""

    chat: Chat
    prefix: str
    """So much of its id, eight letters at least, as no other chat's begins with."""
    n_messages: int
    """What was said in it by the user and by the model; several tries at a reply are one."""
