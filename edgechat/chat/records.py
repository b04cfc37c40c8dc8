"""What a conversation is made of, as it is stored and as the front ends read it."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.engine.types import ErrorInfo, FinishReason, Timings, Usage
from edgechat.settings import Preset, SamplingDefaults

Role = Literal["system", "user", "assistant"]
TurnState = Literal["complete", "streaming", "stopped", "interrupted", "failed"]
"""How far a turn came.

streaming: a reply is being written by a living program; stopped: its reader stopped it; interrupted: the
engine or the program ended in mid-answer, and the text so far was kept; failed: no word of it came.
"""


TRASH_DAYS = 30
"""What has been in the trash for so long goes for good when the store is next opened."""

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


class Attachment(msgspec.Struct, frozen=True):
    """A text that goes with a question: a file, or what was pasted."""

    name: str
    text: str


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was decided for one chat; None leaves it to the settings and the model's makers."""

    think: bool | None = None
    """Switch the model's thinking on or off."""
    sampling: SamplingDefaults = SamplingDefaults()


def applied(preset: Preset, system: str | None, settings: ChatSettings) -> tuple[str | None, ChatSettings]:
    """Return the system prompt and the settings that hold with a preset; what it leaves open stays."""
    found = msgspec.structs.replace(
        settings,
        think=settings.think if preset.think is None else preset.think,
        sampling=preset.sampling.over(settings.sampling),
    )
    return (system if preset.system is None else preset.system), found


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One thing said, by the user or by the model."""

    id: str
    chat_id: str
    role: Role
    content: str
    thinking: str = ""
    state: TurnState = "complete"
    parent_id: str | None = None
    """The turn this one answers; two turns of one parent are two tries, or two wordings of a question."""
    created_at: float
    """Seconds since 1970, UTC."""
    figures: Figures | None = None
    error: ErrorInfo | None = None
    attachments: tuple[Attachment, ...] = ()
    """What the model is sent before the words of a question."""


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
    pinned: bool = False
    """Whether it stays at the top of the list."""
    settings: ChatSettings = ChatSettings()
    leaf: str | None = None
    """A turn of the line that is shown, which goes on to what was written last behind it; None: the line
    that was written last of all."""
    trashed_at: float | None = None
    """When it was put into the trash; None: it is not there."""


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as the app's list shows it."""

    chat: Chat
    writing: bool
    """Whether a reply is being written in it, here or in another program."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the words that were searched for occur."""

    chat: Chat
    turn_id: str
    """The turn that has them; '' where it is the chat's title."""
    role: Role
    created_at: float
    snippet: str
    """One printable line around them."""
    marks: tuple[tuple[int, int], ...]
    """Where they are in the snippet: (first character, one behind the last), in order and apart."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a list shows it."""

    chat: Chat
    prefix: str
    """So much of its id, eight letters at least, as no other chat's begins with."""
    n_messages: int
    """What was said in it by the user and by the model; several tries at a reply are one."""
