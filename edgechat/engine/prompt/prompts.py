"""Prompts: turn a request's messages into tokens, and find the prefix shared by all possible next prompts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from edgechat.base.errors import BadRequest, PromptTooLong, SwitchUnknown, TemplateError
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.kv.prefix_cache import common_prefix
from edgechat.engine.prompt.control_tokens import ControlTokens
from edgechat.engine.prompt.media_tokens import MediaTokens
from edgechat.engine.prompt.template import TEXT_LIMIT, ChatTemplate, begins_answer, begins_reply
from edgechat.engine.prompt.token_counts import LONGEST_PIECE, TokenEstimate, at_least, n_bytes, texts_of
from edgechat.engine.prompt.window import ContextWindow, whole, window_of
from edgechat.engine.types import ChatRequest, Message

_MOST = 4
"""Text is tokenized up to this multiple of the context, to find out how many tokens must be dropped."""
_RUN = 3
"""Control tokens at most this many tokens apart are taken to lie between the same two messages."""
_DISTANCES = tuple(2**n for n in range(20, 5, -1))
"""Distances from the end of a prompt, in tokens. Each is half the previous one, so that after an edit, at
most twice as much as necessary is recomputed.
"""
_NEAR = 4096
"""Text of this many characters can be tokenized a dozen times without a noticeable delay."""

# Ways to start a question that could merge with the end of the text before it.
_FIRSTS = ("a", "1", "\n", " ", "A", ",", "\n\n", "  ", "\t", ".", ":", "(", "]", "'", "_", "中", "é", "😀")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens that come before a reply, or that are prewarmed for the next turn."""

    tokens: list[int]
    boundaries: tuple[int, ...]
    """Positions where later prompts may diverge: before each message, and before the generation prompt."""
    dropped: int
    """How many turns were left out."""
    thinking: bool
    """Whether the prompt already contains the mark that opens the model's thought."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A window of messages and the text and tokens rendered from it."""

    window: ContextWindow
    messages: list[Message]
    text: str
    tokens: list[int]


class Prompts:
    """Builds the prompts for one model. Thread-safe."""

    def __init__(
        self, template: ChatTemplate, vocabulary: Vocabulary, media: MediaTokens | None = None
    ) -> None:
        """media: for models with vision or audio."""
        self._template = template
        self._vocabulary = vocabulary
        self._media = media or MediaTokens()
        self.control_tokens = ControlTokens(vocabulary, self._media)
        self._sizes = TokenEstimate(template.render, vocabulary, self.control_tokens)
        self._endings: dict[bool | None, tuple[str | None, str]] = {}
        self._lock = threading.Lock()

    def of(self, request: ChatRequest, cells: int) -> Prompt:
        """Return the prompt for a request, given a context of `cells` tokens.

        Raises TemplateError, SwitchUnknown, BadRequest, MediaError and PromptTooLong.
        """
        with self._lock:
            if request.text is not None:
                return self._plain(request.text, request.suffix, cells)
            request = replace(request, messages=self._media.marked(request.messages))
            draft = self._render_fitting(request, request.messages, cells)
            if len(draft.tokens) >= cells:
                raise _too_long(str(len(draft.tokens)), cells)
            return self._prompt(request, draft)

    def _plain(self, text: str | tuple[int, ...], suffix: str, cells: int) -> Prompt:
        """Return the prompt for tokens, or for raw text, in which control tokens are parsed."""
        if suffix:
            tokens = self._infill(text, suffix, cells)
        elif isinstance(text, str):
            if more := at_least(text, cells, self._tokens):
                raise _too_long(f"more than {more}", cells, "The text")
            tokens = self._tokens(text, cells)
        else:
            tokens = list(text)
        unknown = next((token for token in tokens if not 0 <= token < self._vocabulary.size), None)
        if unknown is not None:
            raise BadRequest(
                f"The prompt contains the unknown token {unknown}; the model's tokens are 0 to "
                f"{self._vocabulary.size - 1}."
            )
        if not tokens:
            raise BadRequest("The prompt is empty.", hint="Send text, or at least one token, to continue.")
        if len(tokens) >= cells:
            raise _too_long(str(len(tokens)), cells, "The text")
        # If the same prompt is sent again, only the last token has to be computed.
        return Prompt(tokens, self._boundaries(tokens, len(tokens) - 1), dropped=0, thinking=False)

    def _infill(self, text: str | tuple[int, ...], suffix: str, cells: int) -> list[int]:
        """Return the tokens of a fill-in-the-middle prompt."""
        marks = self._vocabulary.infill()
        if marks is None:
            raise BadRequest(
                "This model was not trained to fill in text before a suffix.",
                hint="Omit suffix, or use a code model that supports it, such as Qwen2.5-Coder.",
            )
        if not isinstance(text, str):
            raise BadRequest("With a suffix, the prompt must be text, not tokens.")
        for part in (text, suffix):
            if more := at_least(part, cells, self._plain_tokens):
                raise _too_long(f"more than {more}", cells, "The text")
        before_prefix, before_suffix, before_middle = marks
        bos = self._vocabulary.tokenize("", bos=True, special=False)
        prefix = [before_prefix, *self._plain_tokens(text)]
        return [*bos, *prefix, before_suffix, *self._plain_tokens(suffix), before_middle]

    def _plain_tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, bos=False, special=False)

    def next(self, request: ChatRequest, reply: Message, cells: int) -> Prompt | None:
        """Return the prefix shared by all prompts that could follow `reply`.

        It ends before the next question, and stays valid unless that question is so long that turns must be
        dropped. Returns None if the template rejects the chat or the chat does not fit.
        """
        # A call is followed by its result.
        question = Message("tool", "a", call_id=reply.calls[0].id) if reply.calls else Message("user", "a")
        before = self._media.marked(request.messages)
        if begins_reply(before):  # `reply` continues it
            begun, before = before[-1], before[:-1]
            thinking, content = begun.thinking + reply.thinking, begun.content + reply.content
            reply = replace(reply, thinking=thinking, content=content)
        messages = (*before, reply, question)
        with self._lock:
            try:
                draft = self._render_fitting(request, messages, cells)
                other = self._render(request, [*draft.messages[:-1], replace(question, content="1")])
            except (TemplateError, SwitchUnknown, PromptTooLong):
                return None
            if len(draft.tokens) >= cells:
                return None
            n_tokens = self._before_question(draft, common_prefix(draft.text, other))
            return Prompt(draft.tokens[:n_tokens], (n_tokens,), draft.window.dropped, thinking=False)

    def shorter(self, request: ChatRequest, cells: int, dropped: int, generated: int) -> Prompt | None:
        """Return a prompt that leaves out more than `dropped` turns, for a reply that has filled the context.

        The new prompt and the `generated` tokens take about 3/4 of the cells, and at most 7/8. Returns None
        if the request forbids it, if no more turns can be left out, or if that would not be enough.
        """
        if request.overflow == "error":
            return None
        with self._lock:
            request = replace(request, messages=self._media.marked(request.messages))
            window: ContextWindow | None = self._window(request, request.messages, cells, exact=True)
            while window is not None and window.dropped <= dropped:
                window = window.narrower()
            if window is None:
                return None
            most = cells * 3 // 4 - generated
            if window.tokens > most:
                window = window.narrower(window.tokens - most) or window
            try:
                draft = self._fit(request, request.messages, window, cells, most)
            except (TemplateError, PromptTooLong):
                return None
            if len(draft.tokens) + generated > cells * 7 // 8:
                return None
            return self._prompt(request, draft)

    def _render_fitting(self, request: ChatRequest, messages: Sequence[Message], cells: int) -> _Draft:
        """Render messages, leaving out turns to make room for the start of a reply."""
        room = max(1, min(64, cells // 16))
        return self._fit(request, messages, self._window(request, messages, cells), cells, cells - room)

    def _window(
        self, request: ChatRequest, messages: Sequence[Message], cells: int, *, exact: bool = False
    ) -> ContextWindow:
        """Return the window for `messages`. exact: use exact sizes instead of upper bounds."""
        if request.overflow == "error":
            return whole(len(messages))
        if sum(len(text) for message in messages for text in texts_of(message)) > TEXT_LIMIT:
            raise _too_long(f"more than {TEXT_LIMIT // LONGEST_PIECE}", cells)
        added = self._sizes.overhead(request.think)
        fixed = added.prompt(messages) + self._sizes.tools(request.tools)
        if not exact:
            # No token is empty, so short texts are sure to fit and need not be tokenized.
            most = [(msg.role, self._most(msg) + added.message * (1 + len(msg.calls))) for msg in messages]
            if fixed + sum(size for _, size in most) <= cells * 3 // 4:
                return window_of(most, cells, fixed=fixed)
        return window_of(self._sizes.of(messages, added, cells), cells, fixed=fixed)

    def _most(self, message: Message) -> int:
        """Return an upper bound on the number of tokens in a message's text and media."""
        n_text = n_bytes(message.thinking) + sum(n_bytes(text) for text in texts_of(message))
        return n_text + self._media.count(message.content)

    def _fit(
        self, request: ChatRequest, messages: Sequence[Message], window: ContextWindow, cells: int, most: int
    ) -> _Draft:
        """Render a window, leaving out more turns while it has more than `most` tokens."""
        while True:
            kept = [messages[at] for at in window.kept]
            size = sum(n_bytes(text) for message in kept for text in texts_of(message))
            around = len(kept) * self._sizes.overhead(request.think).message // 2
            if size > min(LONGEST_PIECE * cells, TEXT_LIMIT) or around > cells:
                # Rejected before it is rendered, since rendering may take a long time.
                raise _too_long(f"more than {max(around, size // LONGEST_PIECE)}", cells)
            text = self._render(request, kept)
            if n_bytes(text) > LONGEST_PIECE * cells:
                raise _too_long(f"more than {n_bytes(text) // LONGEST_PIECE}", cells)
            if window.narrower() is None and (more := at_least(text, cells, self._tokens)):
                raise _too_long(f"more than {more}", cells)
            tokens = self._tokens(text, _MOST * cells)
            if not tokens:
                raise TemplateError(
                    "The model's chat template produced an empty prompt for these messages.",
                    hint="The file may be damaged: use a copy of the model from another source.",
                )
            narrower = window.narrower(len(tokens) - most) if len(tokens) > most else None
            if narrower is None:
                return _Draft(window, kept, text, tokens)
            window = narrower

    def _tokens(self, text: str, most: int | None = None) -> list[int]:
        return self.control_tokens.tokens(text, bos=True, most=most)

    def _render(
        self, request: ChatRequest, messages: Sequence[Message], *, generation_prompt: bool = True
    ) -> str:
        if generation_prompt and begins_reply(messages):
            text = self._render(request, messages[:-1])
            return text + self._begun(text, messages[-1])
        return self._template.render(
            messages,
            generation_prompt=generation_prompt,
            tools=request.tools,
            think=request.think,
            effort=request.effort,
            date=request.date,
            guard=self.control_tokens.guard,
        )

    def _begun(self, text: str, begun: Message) -> str:
        """Return the text that a partial reply adds to a rendered chat."""
        marks = self._template.marks
        thought: str = self.control_tokens.guard(begun.thinking)
        answer: str = self.control_tokens.guard(begun.content)
        if marks is None or text.rstrip().endswith(marks.close):  # there is no thought, or it is empty
            return answer
        is_open = text.rstrip().endswith(marks.open)
        if thought:
            thought = thought if is_open else marks.open + thought
            return thought + marks.close + ("".join(marks.skip) or "\n\n") + answer if answer else thought
        if is_open:
            return f"{'' if text.endswith(chr(10)) else chr(10)}{marks.close}\n\n{answer}"
        return (marks.skip[-1] if marks.skip else "") + answer

    def _is_thinking(self, messages: Sequence[Message], text: str) -> bool:
        """Return True if a rendered chat ends inside a thought."""
        marks = self._template.marks
        if marks is None or begins_answer(messages):
            return False
        begun = self.control_tokens.guard(messages[-1].thinking) if begins_reply(messages) else ""
        return text.removesuffix(begun).rstrip().endswith(marks.open)

    def _prompt(self, request: ChatRequest, draft: _Draft) -> Prompt:
        return Prompt(
            tokens=draft.tokens,
            boundaries=self._boundaries(draft.tokens, self._boundary(request, draft)),
            dropped=draft.window.dropped,
            thinking=self._is_thinking(request.messages, draft.text),
        )

    def _boundaries(self, tokens: list[int], last: int) -> tuple[int, ...]:
        """Return the positions up to `last` where an edit could start: the ends of messages.

        Messages are told apart by control tokens. If there are none, an edit could start anywhere, but most
        likely near `last`.
        """
        control = {token for token in set(tokens) if self._control(token)}
        marks = [at for at in range(1, last) if tokens[at] in control]
        if not marks:
            return (*(last - distance for distance in _DISTANCES if distance < last), last)
        runs = (at for before, at in pairwise([-_RUN, *marks]) if at - before > _RUN)
        return (*(at for at in runs if last - at > _RUN), last)

    def _boundary(self, request: ChatRequest, draft: _Draft) -> int:
        """Return the number of tokens before the generation prompt."""
        asks, answers = self._ending(request)
        asked = bool(draft.messages) and draft.messages[-1].role == "user"
        if asked and asks is not None and draft.text.endswith(asks):
            text = draft.text.removesuffix(asks) + answers
        else:
            try:
                text = self._render(request, draft.messages, generation_prompt=False)
            except TemplateError:
                return len(draft.tokens)
        index, at = self._anchor(draft, common_prefix(draft.text, text))
        rest = self.control_tokens.tokens(text[at:], bos=index == 0)
        return index + common_prefix(draft.tokens[index:], rest)

    def _ending(self, request: ChatRequest) -> tuple[str | None, str]:
        """Return how rendered chats end, with and without the generation prompt, or (None, '') if it varies.

        Determined once, by rendering short chats: rendering a long chat may take longer than tokenizing it.
        """
        if request.think not in self._endings:
            ask, reply = Message("user", "a"), Message("assistant", "b", "c")
            try:
                endings = {self._ending_of(request, chat) for chat in ([ask], [ask, reply, ask])}
            except TemplateError:
                endings = set()
            self._endings[request.think] = endings.pop() if len(endings) == 1 else (None, "")
        return self._endings[request.think]

    def _ending_of(self, request: ChatRequest, messages: Sequence[Message]) -> tuple[str, str]:
        asks = self._render(request, messages)
        answers = self._render(request, messages, generation_prompt=False)
        begins = common_prefix(asks, answers)
        return asks[begins:], answers[begins:]

    def _before_question(self, draft: _Draft, begins: int) -> int:
        """Return how many tokens are the same for every question that starts at character `begins`."""
        index, at = self._anchor(draft, begins)
        before, behind = draft.text[at:begins], draft.text[begins + 1 :]
        firsts = _FIRSTS if len(before) <= _NEAR else _FIRSTS[:4]
        stable = draft.tokens[index:]
        for text in (before + behind, *(before + first for first in firsts)):
            tokens = self.control_tokens.tokens(text, bos=index == 0)
            stable = stable[: common_prefix(stable, tokens)]
        return index + len(stable)

    def _anchor(self, draft: _Draft, limit: int) -> tuple[int, int]:
        """Return the index of the last control token that ends by character `limit`, and where it starts.

        Tokenizers split text at control tokens first, so the text from there on can be tokenized without the
        text before it. Returns (0, 0) if there is no such token.
        """
        at = len(draft.text)
        for index in range(len(draft.tokens) - 1, 0, -1):
            mark = self._control(draft.tokens[index])
            if not mark:
                continue
            at = draft.text.rfind(mark, 0, at)
            if at < 0:
                break
            if at + len(mark) <= limit:
                return index, at
        return 0, 0

    def _control(self, token: int) -> str:
        """Return a control token's text, or '' for any other token."""
        if self._vocabulary.piece(token):
            return ""
        return self._vocabulary.piece(token, special=True).decode("utf-8", "replace")


def _too_long(tokens: str, cells: int, what: str = "The conversation") -> PromptTooLong:
    return PromptTooLong(
        f"{what} has {tokens} tokens, but the context is {cells} tokens long.",
        hint="Shorten it or start a new chat. For a longer context, if the model supports it, use --ctx or "
        "context in settings.toml.",
    )
