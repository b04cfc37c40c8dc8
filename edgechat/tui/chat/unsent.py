"""Prompts that were typed and not sent, and how they are stored."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store

_MAX_STORED = 2**20
"""Characters of one unsent prompt that are stored."""


class UnsentPrompt(msgspec.Struct, omit_defaults=True):
    """A prompt that was not sent; stored as JSON."""

    text: str = ""
    attachments: list[Attachment] = []
    edits: str = ""
    """The id of the question that this is a new wording of; empty for a new question."""
    aside: UnsentPrompt | None = None
    """What was in the prompt before it was used for this; None if this is the prompt's own text."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not (self.text or self.attachments or (self.aside is not None and not self.aside.is_empty))

    def before(self, other: UnsentPrompt) -> UnsentPrompt:
        """Return this followed by a later prompt: as one text, or with the later one set aside."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        if self.edits or other.edits or self.aside is not None or other.aside is not None:
            aside = other if self.aside is None else self.aside.before(other)
            return msgspec.structs.replace(self, aside=aside)
        text = "\n".join(part for part in (self.text, other.text) if part)
        return UnsentPrompt(text, [*self.attachments, *other.attachments])


async def load_unsent(store: Store, chat_id: str | None) -> UnsentPrompt:
    """Return the unsent prompt of a conversation; None: of a new one, wherever it was typed.

    Raises StoreError.
    """
    stored = await store.unsent(chat_id)
    if chat_id is None:
        stored = stored or await store.take_over_unsent()
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(stored or "{}", type=UnsentPrompt)
    return UnsentPrompt()


async def save_unsent(store: Store, chat_id: str | None, prompt: UnsentPrompt) -> None:
    """Store the unsent prompt of a conversation, or (None) of a new one. Raises StoreError."""
    if len(prompt.text) + sum(len(one.text) for one in prompt.attachments) > _MAX_STORED:
        prompt = UnsentPrompt(prompt.text[:_MAX_STORED])
    await store.keep_unsent(chat_id, "" if prompt.is_empty else msgspec.json.encode(prompt).decode())
