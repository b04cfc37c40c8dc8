"""Unsent text: the prompt's content, any content that was set aside, and how both are stored."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from edgechat.chat.attachments import without_passages
from edgechat.chat.records import AttachedImage, Attachment, Turn
from edgechat.chat.storage.store import Store
from edgechat.tui.chat.views import ChatView

_MAX_STORED = 2**20
"""Maximum number of characters stored per unsent prompt."""


class UnsentPrompt(msgspec.Struct, omit_defaults=True):
    """Unsent text and attachments, stored as JSON."""

    text: str = ""
    attachments: list[Attachment] = []
    images: list[AttachedImage] = []
    edits: str = ""
    """The id of the question that this prompt rewords, or '' for a new question."""
    aside: UnsentPrompt | None = None
    """The prompt's previous content, to be restored later, or None if nothing was set aside."""

    @property
    def is_empty(self) -> bool:
        has_aside = self.aside is not None and not self.aside.is_empty
        return not (self.text or self.attachments or self.images or has_aside)

    def before(self, other: UnsentPrompt) -> UnsentPrompt:
        """Combine this with a later prompt, either into one text or by setting the later prompt aside."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        if self.edits or other.edits or self.aside is not None or other.aside is not None:
            aside = other if self.aside is None else self.aside.before(other)
            return msgspec.structs.replace(self, aside=aside)
        text = "\n".join(part for part in (self.text, other.text) if part)
        return UnsentPrompt(text, [*self.attachments, *other.attachments], [*self.images, *other.images])


class PromptContent:
    """The prompt's content: the user's next question, or something that temporarily replaces it.

    While the user rewords an earlier question or fills in a command, the next question is set aside,
    and restored once the other text has been sent.
    """

    def __init__(self, view: ChatView) -> None:
        self._view = view
        self.edits = ""
        """The id of the question being edited, or '' if there is none."""
        self._aside: UnsentPrompt | None = None

    @property
    def unsent(self) -> UnsentPrompt:
        pane, text = self._view.pane, self._view.prompt.unsent
        return UnsentPrompt(text, list(pane.attachments), list(pane.images), self.edits, self._aside)

    @property
    def has_aside(self) -> bool:
        """Whether the prompt holds something other than the user's next question."""
        return self._aside is not None or bool(self.edits)

    def write(self, prompt: UnsentPrompt) -> None:
        self.edits, self._aside = prompt.edits, prompt.aside
        hint = "Esc returns to your text" if prompt.aside is not None else ""
        title = "editing · Esc cancels" if prompt.edits else hint
        self._view.pane.put(prompt.text, prompt.attachments, prompt.images, title)

    def write_before(self, prompt: UnsentPrompt) -> None:
        """Insert an earlier prompt before whatever has been typed since."""
        self.write(prompt.before(self.unsent))

    def replace(self, text: str, turn: Turn | None = None) -> None:
        """Set the current content aside and fill in `text`. turn: the question to be reworded, if any."""
        now = self.unsent
        aside = None if now.is_empty and turn is None else now
        prompt = UnsentPrompt(text, aside=aside)
        if turn is not None:
            files = without_passages(turn.attachments)
            prompt = UnsentPrompt(text, files, list(turn.images), turn.id, aside)
        self.write(prompt)
        self._view.prompt.focus()

    def restore(self) -> None:
        self.write(self._aside or UnsentPrompt())

    def sent(self) -> None:
        """After sending, restore the content that was set aside, followed by any text typed since."""
        pane = self._view.pane
        since = UnsentPrompt(self._view.prompt.text, list(pane.attachments), list(pane.images))
        self.write((self._aside or UnsentPrompt()).before(since))


async def load_unsent(store: Store, chat_id: str | None) -> UnsentPrompt:
    """Return the unsent prompt for a conversation, or for a new one (None). Raises StoreError.

    The prompt for a new conversation may have been left behind by another process that has ended.
    """
    stored = await store.unsent(chat_id)
    if chat_id is None:
        stored = stored or await store.take_over_unsent()
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(stored or "{}", type=UnsentPrompt)
    return UnsentPrompt()


async def save_unsent(store: Store, chat_id: str | None, prompt: UnsentPrompt) -> None:
    """Store the unsent prompt for a conversation, or for a new one (None). Raises StoreError."""
    value = "" if prompt.is_empty else msgspec.json.encode(_bounded(prompt)).decode()
    await store.keep_unsent(chat_id, value)


def _bounded(prompt: UnsentPrompt) -> UnsentPrompt:
    """Return a prompt with its content, and anything it set aside, truncated to the limit."""
    text = prompt.text[:_MAX_STORED]
    room, attachments = _MAX_STORED - len(text), []
    for attachment in prompt.attachments:
        if len(attachment.text) <= room:
            attachments.append(attachment)
            room -= len(attachment.text)
    aside = _bounded(prompt.aside) if prompt.aside is not None else None
    return msgspec.structs.replace(prompt, text=text, attachments=attachments, aside=aside)
