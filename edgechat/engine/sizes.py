"""How many tokens a message takes in a prompt: an estimate, for the window to add up."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.template import ChatTemplate
from edgechat.engine.types import Message, Role, Tool
from edgechat.errors import TemplateError

LONGEST_PIECE = 512
"""Bytes; no vocabulary has a token as long, so a longer text has more tokens than its bytes over this."""
_REMEMBERED = 16_384
"""Texts whose number of tokens is remembered, in some 3 MB; a chat of 300,000 tokens has fewer messages."""
_TOOLS_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a template adds, in tokens."""

    alone: int
    """To a prompt, whatever is said."""
    ruled: int
    """To one with a system prompt, in whose absence some templates have their own."""
    message: int
    keeps_thinking: bool
    """Thoughts of earlier turns are part of the prompt."""

    def prompt(self, messages: Sequence[Message]) -> int:
        """Return what it adds to a prompt of these messages beside what it adds to each."""
        return self.ruled if messages and messages[0].role == "system" else self.alone


_UNKNOWN = Overhead(alone=64, ruled=64, message=8, keeps_thinking=False)
"""More than most templates add; for those that refuse the messages they are tried with."""


class Sizes:
    """How many tokens a message takes: an estimate from its own text and what the template adds to any."""

    def __init__(self, template: ChatTemplate, vocabulary: Vocabulary) -> None:
        self._template = template
        self._vocabulary = vocabulary
        self._overheads: dict[bool | None, Overhead] = {}
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._tools: OrderedDict[tuple[Tool, ...], int] = OrderedDict()

    def of(self, message: Message, added: Overhead, cells: int) -> tuple[Role, int]:
        """Return a message's role and tokens; of one that cannot fit, no more than that it cannot."""
        size = added.message * (1 + len(message.calls))
        size += sum(self._count(text, cells) for text in said(message))
        if added.keeps_thinking:
            size += self._count(message.thinking, cells)
        return message.role, size

    def _count(self, text: str, cells: int) -> int:
        raw = text.encode("utf-8", "replace")
        if len(raw) > LONGEST_PIECE * cells:
            return len(raw) // LONGEST_PIECE
        key = hashlib.blake2b(raw, digest_size=16).digest()
        found = self._counts.pop(key, None)
        if found is None:
            found = len(self._vocabulary.tokenize(text, bos=False, special=True))
            if len(self._counts) >= _REMEMBERED:
                self._counts.popitem(last=False)
        self._counts[key] = found
        return found

    def tools(self, tools: tuple[Tool, ...]) -> int:
        """Return what a prompt is longer by where the model is told of tools. Raises SchemaError."""
        if not tools:
            return 0
        found = self._tools.pop(tools, None)
        if found is None:
            found = self._told(tools)
            if len(self._tools) >= _TOOLS_REMEMBERED:
                self._tools.popitem(last=False)
        self._tools[tools] = found
        return found

    def _told(self, tools: tuple[Tool, ...]) -> int:
        ask = (Message("user", "a"),)
        try:
            texts = self._template.render(ask, tools=tools), self._template.render(ask)
        except TemplateError:
            return sum(len(tool.description) + len(tool.parameters) for tool in tools)
        more, less = (len(self._vocabulary.tokenize(text, bos=False, special=True)) for text in texts)
        return max(0, more - less)

    def overhead(self, think: bool | None) -> Overhead:
        """Return what the template adds, found by rendering short chats. Raises SwitchUnknown."""
        found = self._overheads.get(think)
        if found is None:
            found = self._overheads[think] = self._probe(think)
        return found

    def _probe(self, think: bool | None) -> Overhead:
        rules, ask, reply = (Message("system", "a"), Message("user", "a"), Message("assistant", "a", "xyzzy"))

        def n_tokens(*messages: Message) -> int:
            text = self._template.render(messages, think=think)
            return len(self._vocabulary.tokenize(text, bos=False, special=True))

        try:
            word, one, two = self._count("a", 1), n_tokens(ask), n_tokens(ask, reply, ask)
            keeps = "xyzzy" in self._template.render((ask, reply, ask), think=think)
        except TemplateError:
            return _UNKNOWN
        pair = two - one - 2 * word - (self._count("xyzzy", 1) if keeps else 0)
        message = max(0, pair + 1) // 2
        alone = max(0, one - word - message)
        try:
            ruled = max(0, n_tokens(rules, ask) - 2 * word - 2 * message)
        except TemplateError:
            ruled = alone
        return Overhead(alone, ruled, message, keeps)


def said(message: Message) -> Iterator[str]:
    """Return what a message adds to every prompt: its texts, but for the thinking."""
    yield message.content
    for call in message.calls:
        yield call.name
        yield call.arguments


def n_bytes(text: str) -> int:
    """Return the bytes of a text, of which no token has none."""
    return len(text.encode("utf-8", "replace"))
