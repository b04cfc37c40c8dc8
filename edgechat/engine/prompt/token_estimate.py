"""How many tokens a message takes in a prompt: an estimate, for the window to add up."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgechat.base.errors import TemplateError
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.control_tokens import ControlTokens
from edgechat.engine.types import Message, Role, Tool

LONGEST_PIECE = 512
"""Bytes; no vocabulary has a token as long, so a longer text has more tokens than its bytes over this."""
_USUAL = 8
"""Bytes; tokens of nearly all texts are shorter."""
_SLICE = 16_384
"""Characters."""
_GUESSED = 4
"""Bytes of a token, where nobody counts."""
_REMEMBERED = 16_384
"""Texts whose number of tokens is remembered, in some 3 MB; a chat of 300,000 tokens has fewer messages."""
_TOOLS_REMEMBERED = 16
_MOST_ADDED = 65_536
"""Tokens of a short chat and of tools; honest templates add hundreds."""


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


class TokenEstimate:
    """How many tokens a message takes: an estimate from its own text and what the template adds to any."""

    def __init__(self, render: Callable[..., str], vocabulary: Vocabulary, control: ControlTokens) -> None:
        """render: `ChatTemplate.render`."""
        self._render = render
        self._vocabulary = vocabulary
        self._control = control
        self._overheads: dict[bool | None, Overhead] = {}
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._tools: OrderedDict[tuple[Tool, ...], int] = OrderedDict()

    def of(self, messages: Sequence[Message], added: Overhead, cells: int) -> list[tuple[Role, int]]:
        """Return each message's role and tokens; of one that cannot fit, no more than that it cannot.

        The first two are counted, which leave last, and the newest, more of them than fit. Those before them
        will not be sent: where they have never been counted, a guess by their bytes will do.
        """
        order = (*range(len(messages))[:2], *range(len(messages) - 1, 1, -1))
        sizes = [0] * len(messages)
        left = 4 * cells
        for at in order:
            sizes[at] = self._of(messages[at], added, cells, guess=left <= 0)
            left -= min(sizes[at], cells)
        return [(message.role, size) for message, size in zip(messages, sizes, strict=True)]

    def _of(self, message: Message, added: Overhead, cells: int, *, guess: bool) -> int:
        texts = (*said(message), *((message.thinking,) if added.keeps_thinking else ()))
        size = added.message * (1 + len(message.calls))
        return size + sum(self._count(text, cells, guess=guess) for text in texts)

    def _count(self, text: str, cells: int, *, guess: bool = False) -> int:
        raw = text.encode("utf-8", "replace")
        key = hashlib.blake2b(raw, digest_size=16).digest()
        found = self._counts.pop(key, None)
        if found is None:
            if guess:
                return len(raw) // _GUESSED
            if more := at_least(text, cells, self._tokens):
                return more
            found = len(self._tokens(text))
            if len(self._counts) >= _REMEMBERED:
                self._counts.popitem(last=False)
        self._counts[key] = found
        return found

    def _tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, bos=False, special=False)

    def _n_rendered(self, text: str) -> int:
        """Return the number of tokens of a short chat that was rendered. Raises TemplateError."""
        found = len(self._control.tokens(text, bos=False, most=_MOST_ADDED))
        if found > _MOST_ADDED:
            raise TemplateError(f"The model's chat template adds more than {_MOST_ADDED} tokens to a chat.")
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
            with_tools = self._render(ask, tools=tools, guard=self._control.guard)
            return max(0, self._n_rendered(with_tools) - self._n_rendered(self._render(ask)))
        except TemplateError:
            return sum(len(tool.description) + len(tool.parameters) for tool in tools)

    def overhead(self, think: bool | None) -> Overhead:
        """Return what the template adds, found by rendering short chats. Raises SwitchUnknown."""
        found = self._overheads.get(think)
        if found is None:
            found = self._overheads[think] = self._probe(think)
        return found

    def _probe(self, think: bool | None) -> Overhead:
        rules, ask, reply = (Message("system", "a"), Message("user", "a"), Message("assistant", "a", "xyzzy"))

        def n_tokens(*messages: Message) -> int:
            return self._n_rendered(self._render(messages, think=think))

        try:
            word, one, two = self._count("a", 1), n_tokens(ask), n_tokens(ask, reply, ask)
            keeps = "xyzzy" in self._render((ask, reply, ask), think=think)
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


def at_least(text: str, cells: int, tokens: Callable[[str], Sequence[int]]) -> int:
    """Return how many tokens a text has at least, if that is more than `cells`, else 0.

    Of a text that cannot fit, only the beginning is looked at: all of it may take seconds. `tokens` cuts a
    text into tokens.
    """
    size = n_bytes(text)
    if size > LONGEST_PIECE * cells:
        return size // LONGEST_PIECE
    found = start = 0
    while size > _USUAL * cells and start < len(text):
        found += len(tokens(text[start : start + _SLICE]))
        if found > 2 * cells:  # twice: a slice may end in the middle of tokens
            return found // 2
        start += _SLICE
    return 0


def said(message: Message) -> Iterator[str]:
    """Return what a message adds to every prompt: its texts, but for the thinking."""
    yield message.content
    for call in message.calls:
        yield call.name
        yield call.arguments


def n_bytes(text: str) -> int:
    """Return the bytes of a text, of which no token has none."""
    return len(text.encode("utf-8", "replace"))
