"""Records for the parts of a conversation, as stored and as used by the front ends."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from edgechat.documents.citations import PassageSource
from edgechat.engine.types import ErrorInfo, FinishReason, Timings, Usage
from edgechat.settings import Preset, SamplingDefaults

Role = Literal["system", "user", "assistant"]
TurnState = Literal["complete", "streaming", "stopped", "interrupted", "failed"]
"""The state of a turn.

streaming: a reply is being generated. stopped: the user stopped it. interrupted: the engine or the program
ended before the reply was complete, and the text so far was kept. failed: it has no text.
"""

TRASH_DAYS = 30
"""Number of days that a chat stays in the trash; after that, it is deleted when the store is next opened."""

Front = Literal["app", "run"]
"""The front end of a chat: the app, or the command line (`edgechat run`)."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics on a reply, stored with its turn as JSON."""

    reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    context: int = 0
    """Cells in the KV cache; 0 if unknown."""
    thinking_tokens: int = 0
    thinking_seconds: float = 0.0
    model: str = ""
    """The name of the model that wrote the reply, or at least its last part; '' if unknown."""

    @property
    def seconds(self) -> float:
        """Seconds from the question to the end of the reply, excluding model loading; 0 if unknown."""
        if self.usage is None or self.timings is None:
            return 0.0
        tps = self.timings.decode_tps
        return self.timings.ttft_ms / 1000 + (max(0, self.usage.completion_tokens - 1) / tps if tps else 0.0)

    def followed_by(self, rest: Figures) -> Figures:
        """Combine these figures, for the beginning of a reply, with the figures for the rest of it."""
        usage, timings = rest.usage, None
        if self.usage is not None and usage is not None:
            n = self.usage.completion_tokens  # these tokens were part of the second prompt
            usage = msgspec.structs.replace(
                usage,
                prompt_tokens=max(0, usage.prompt_tokens - n),
                cached_tokens=max(0, usage.cached_tokens - n),
                completion_tokens=n + usage.completion_tokens,
            )
            timings = self._timings_with(rest, usage.completion_tokens)
        return msgspec.structs.replace(
            rest,
            usage=usage,
            timings=timings,
            thinking_tokens=self.thinking_tokens + rest.thinking_tokens,
            thinking_seconds=round(self.thinking_seconds + rest.thinking_seconds, 1),
        )

    def _timings_with(self, rest: Figures, tokens: int) -> Timings | None:
        if self.timings is None or rest.timings is None:
            return None
        ttft_ms = self.timings.ttft_ms
        decoding = self.seconds + rest.seconds - ttft_ms / 1000
        tps = max(0, tokens - 1) / decoding if decoding > 0 else 0.0
        return msgspec.structs.replace(rest.timings, ttft_ms=ttft_ms, decode_tps=tps)


ToolOutcome = Literal["open", "answered", "failed", "refused", "stopped"]
"""The outcome of a tool call.

open: it is waiting for permission, or running; once the reply has ended, it counts as interrupted. failed: it
returned an error, or nothing. refused: the user did not allow it. stopped: it was not carried out, or only
partly.
"""


class AttachedImage(msgspec.Struct, frozen=True):
    """An image attached to a question or returned by a tool call; its file is in `Store.images`."""

    name: str
    digest: str
    """Digest of the file; see `edgechat.base.images.image.Image`."""
    width: int
    """In pixels."""
    height: int

    @property
    def size(self) -> str:
        """The size in pixels: '1,024 × 768'."""
        return f"{self.width:,} × {self.height:,}"


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call in a reply, with its result. All text is untrusted."""

    id: str
    name: str
    """The model's name for the tool."""
    arguments: str
    """What the model wrote: JSON, or something close to it."""
    server: str = ""
    """The tool's server; '' if the tool does not exist or is not known yet."""
    tool: str = ""
    """The server's name for the tool."""
    outcome: ToolOutcome = "open"
    result: str = ""
    """The text given to the model."""
    images: tuple[AttachedImage, ...] = ()
    """Images, for models that can see them."""
    seconds: float = 0.0


class ToolRound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a reply that ends with tool calls."""

    uses: tuple[ToolUse, ...]
    content: str = ""
    """The text before the calls."""
    thinking: str = ""
    thinking_tokens: int = 0
    thinking_seconds: float = 0.0


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Text sent with a question: a file, a paste, or a passage from a document."""

    name: str
    text: str
    source: PassageSource | None = None
    """Where the text comes from, if it is a passage."""


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one chat; None means that settings.toml or the model's recommendation applies."""

    think: bool | None = None
    """Switches the model's thinking on or off."""
    sampling: SamplingDefaults = SamplingDefaults()
    tools: tuple[str, ...] = ()
    """Allowed tools; see `edgechat.tools.registry.ToolRegistry.open`."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters, as FILE or NAME:SCALE."""
    documents: tuple[str, ...] = ()
    """Names of document collections to search."""


def apply_preset(
    preset: Preset, system: str | None, settings: ChatSettings
) -> tuple[str | None, ChatSettings]:
    """Return a system prompt and settings with a preset's values applied."""
    changed = msgspec.structs.replace(
        settings,
        think=settings.think if preset.think is None else preset.think,
        sampling=preset.sampling.over(settings.sampling),
        adapters=settings.adapters if preset.adapters is None else preset.adapters,
    )
    return (system if preset.system is None else preset.system), changed


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A question, a reply or a system prompt."""

    id: str
    chat_id: str
    role: Role
    content: str
    thinking: str = ""
    state: TurnState = "complete"
    parent_id: str | None = None
    """The previous turn; turns with the same parent are versions of the same reply or question."""
    created_at: float
    """Seconds since 1970, UTC."""
    figures: Figures | None = None
    error: ErrorInfo | None = None
    attachments: tuple[Attachment, ...] = ()
    """Sent to the model before the text of a question."""
    images: tuple[AttachedImage, ...] = ()
    """Sent to the model before the attachments."""
    rounds: tuple[ToolRound, ...] = ()
    """All parts of a reply except the last, which is in `thinking` and `content`."""

    @property
    def attached(self) -> tuple[AttachedImage | Attachment, ...]:
        """Everything sent to the model before the text."""
        return (*self.images, *self.attachments)

    @property
    def all_images(self) -> tuple[AttachedImage, ...]:
        """The images in a question, or in all of a reply's tool results."""
        uses = (use for part in self.rounds for use in part.uses)
        return (*self.images, *(image for use in uses for image in use.images))

    @property
    def has_words(self) -> bool:
        """Whether the turn has any content."""
        return bool(self.content or self.thinking or self.attachments or self.images or self.rounds)

    @property
    def is_cut(self) -> bool:
        """Whether it is a reply that can be continued: stopped, interrupted, or ended by a limit."""
        if self.role != "assistant" or not (self.content or self.thinking or self.rounds):
            return False
        if self.state == "complete":
            return self.figures is not None and self.figures.reason in ("length", "context", "tools")
        return self.state in ("stopped", "interrupted")


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation without its turns."""

    id: str
    title: str
    model: str
    """The name of the last model that answered."""
    date: str
    """The ISO date on which the chat was started; the template still shows this date in later turns."""
    created_at: float
    updated_at: float
    front: Front = "app"
    """The front end that last used it."""
    pinned: bool = False
    """Whether it stays at the top of the list."""
    settings: ChatSettings = ChatSettings()
    leaf: str | None = None
    """Selects the branch to show: the latest one that contains this turn or, if None, the latest overall."""
    trashed_at: float | None = None
    """When it was moved to the trash, or None."""

    @property
    def model_name(self) -> str:
        """The model's name, without the folder if it is a file."""
        return os.path.basename(self.model) if os.path.isabs(self.model) else self.model


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as shown in the app's list."""

    chat: Chat
    writing: bool
    """Whether a reply is being generated in it, here or in another program."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A search result."""

    chat: Chat
    turn_id: str
    """The turn that contains the words; '' if they are in the chat's title."""
    role: Role
    created_at: float
    snippet: str
    """A printable line of text around the words."""
    marks: tuple[tuple[int, int], ...]
    """Spans of the words in the snippet: (start, end) in characters, in order and not overlapping."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as shown in a list of chats."""

    chat: Chat
    prefix: str
    """The shortest unique prefix of its id, at least eight characters long."""
    n_messages: int
    """Number of questions and replies, counting all versions of each as one."""
