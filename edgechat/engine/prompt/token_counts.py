"""Counts tokens in messages and in the text a template adds; converts between text and tokens for clients."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgechat.base.errors import BadRequest, TemplateError
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.control_tokens import ControlTokens
from edgechat.engine.prompt.window import guessed_tokens
from edgechat.engine.types import (
    MOST_CHARACTERS,
    MOST_TOKENS,
    MOST_WITH_MARKS,
    ChatRequest,
    Message,
    Role,
    Tool,
    Translate,
    Translated,
)

LONGEST_PIECE = 512
"""Maximum length of a token in any vocabulary, in bytes. This gives a lower bound on token counts."""
_USUAL = 8
"""Bytes per token: in nearly all texts, the average token is shorter than this."""
_SLICE = 16_384
"""Number of characters to tokenize at once."""
MOST_REMEMBERED = 16_384
"""How many token counts to cache, using about 3 MB. Even a chat of 300,000 tokens has fewer messages."""
_TOOLS_REMEMBERED = 16
_MOST_ADDED = 65_536
"""Maximum number of tokens in a short chat with tools. Well-behaved templates add hundreds."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """How many tokens a template adds."""

    alone: int
    """Tokens added to a prompt without a system prompt. Some templates then add a default one."""
    ruled: int
    """Tokens added to a prompt with a system prompt."""
    message: int
    keeps_thinking: bool
    """Whether prompts include thoughts from earlier turns."""

    def prompt(self, messages: Sequence[Message]) -> int:
        """Return the overhead for a prompt with these messages, excluding the overhead per message."""
        return self.ruled if messages and messages[0].role == "system" else self.alone


_UNKNOWN = Overhead(alone=64, ruled=64, message=8, keeps_thinking=False)
"""Overhead assumed for templates that reject the messages used for probing. Most templates add less."""


class TokenEstimate:
    """Estimates the number of tokens in messages from their texts and the template's overhead."""

    def __init__(self, render: Callable[..., str], vocabulary: Vocabulary, control: ControlTokens) -> None:
        """render: `ChatTemplate.render`."""
        self._render = render
        self._vocabulary = vocabulary
        self._control = control
        self._overheads: dict[bool | None, Overhead] = {}
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._tools: OrderedDict[tuple[Tool, ...], int] = OrderedDict()

    def of(self, messages: Sequence[Message], added: Overhead, cells: int) -> list[tuple[Role, int]]:
        """Return each message's role and token count, or a lower bound above `cells` if a message cannot fit.

        Tokens are counted in the first two messages, which are dropped last, and from the newest message
        backwards until the context is full. Older messages will not be sent, so they are estimated from their
        size in bytes, unless they have been counted before.
        """
        order = (*range(len(messages))[:2], *range(len(messages) - 1, 1, -1))
        sizes = [0] * len(messages)
        left = 4 * cells
        for at in order:
            sizes[at] = self._of(messages[at], added, cells, guess=left <= 0)
            left -= min(sizes[at], cells)
        return [(message.role, size) for message, size in zip(messages, sizes, strict=True)]

    def _of(self, message: Message, added: Overhead, cells: int, *, guess: bool) -> int:
        texts = (*texts_of(message), *((message.thinking,) if added.keeps_thinking else ()))
        media = self._control.media
        size = added.message * (1 + len(message.calls)) + media.count(message.content)
        return size + sum(self._count(media.without(text), cells, guess=guess) for text in texts)

    def _count(self, text: str, cells: int, *, guess: bool = False) -> int:
        raw = text.encode("utf-8", "replace")
        key = hashlib.blake2b(raw, digest_size=16).digest()
        count = self._counts.pop(key, None)
        if count is None:
            if guess:
                return guessed_tokens(len(raw))
            if more := at_least(text, cells, self._tokens):
                return more
            count = len(self._tokens(text))
            if len(self._counts) >= MOST_REMEMBERED:
                self._counts.popitem(last=False)
        self._counts[key] = count
        return count

    def _tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, bos=False, special=False)

    def _n_rendered(self, text: str) -> int:
        """Return the number of tokens in a short rendered chat. Raises TemplateError."""
        count = len(self._control.tokens(text, bos=False, most=_MOST_ADDED))
        if count > _MOST_ADDED:
            raise TemplateError(f"The model's chat template adds more than {_MOST_ADDED} tokens to a chat.")
        return count

    def tools(self, tools: tuple[Tool, ...]) -> int:
        """Return the number of tokens that tools add to a prompt. Raises SchemaError."""
        if not tools:
            return 0
        count = self._tools.pop(tools, None)
        if count is None:
            count = self._count_tools(tools)
            if len(self._tools) >= _TOOLS_REMEMBERED:
                self._tools.popitem(last=False)
        self._tools[tools] = count
        return count

    def _count_tools(self, tools: tuple[Tool, ...]) -> int:
        ask = (Message("user", "a"),)
        try:
            with_tools = self._render(ask, tools=tools, guard=self._control.guard)
            return max(0, self._n_rendered(with_tools) - self._n_rendered(self._render(ask)))
        except TemplateError:
            return sum(len(tool.description) + len(tool.parameters) for tool in tools)

    def overhead(self, think: bool | None) -> Overhead:
        """Return the template's overhead, measured by rendering short chats. Raises SwitchUnknown."""
        if think not in self._overheads:
            self._overheads[think] = self._probe(think)
        return self._overheads[think]

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
    """Return a lower bound on the number of tokens in `text` if that exceeds `cells`, otherwise 0.

    If the text cannot fit, only its start is tokenized (by `tokens`), since tokenizing all of it can take
    seconds.
    """
    size = n_bytes(text)
    if size > LONGEST_PIECE * cells:
        return size // LONGEST_PIECE
    count = start = 0
    while size > _USUAL * cells and start < len(text):
        count += len(tokens(text[start : start + _SLICE]))
        if count > 2 * cells:  # twice as many, because tokens may be cut where the text is sliced
            return count // 2
        start += _SLICE
    return 0


def texts_of(message: Message) -> Iterator[str]:
    """Yield the texts in a message that every prompt includes: all except its thinking."""
    yield message.content
    for call in message.calls:
        yield call.name
        yield call.arguments


def n_bytes(text: str) -> int:
    """Return the length of `text` in UTF-8 bytes."""
    return len(text.encode("utf-8", "replace"))


def translate(vocabulary: Vocabulary, command: Translate) -> Translated:
    """Convert text to tokens, or tokens to text. Raises BadRequest.

    Chats are not accepted, since they need a template.
    """
    what = command.what
    assert not isinstance(what, ChatRequest)
    if isinstance(what, str):
        most = MOST_WITH_MARKS if command.special else MOST_CHARACTERS
        if len(what) > most:
            raise BadRequest(
                f"The text has {len(what)} characters; the limit is {most}.", hint="Send it in several parts."
            )
        tokens = vocabulary.tokenize(what, bos=command.bos, special=command.special)
        return Translated(command.request_id, tuple(tokens), b"")
    if len(what) > MOST_TOKENS:
        raise BadRequest(f"The limit is {MOST_TOKENS} tokens.", hint="Send them in several parts.")
    unknown = next((token for token in what if not 0 <= token < vocabulary.size), None)
    if unknown is not None:
        raise BadRequest(f"Unknown token {unknown}: the model's tokens are 0 to {vocabulary.size - 1}.")
    text = b"".join(vocabulary.piece(token, special=True) for token in what)
    return Translated(command.request_id, what, text)
