"""Text that goes on: POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat.engine.types import ChatRequest, Delta, Finished, TokenLogprobs
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.openai.answers import ChoiceAnswers, FinishReason
from edgechat.server.protocol.openai.generation import (
    MOST_CHOICES,
    Choices,
    GenerationBody,
    Texts,
    limit,
    texts_of,
)
from edgechat.server.protocol.openai.usage import AnswerTimings, UsageBody, timings_of
from edgechat.server.refusal import Refusal

_MOST_TOKENS = 16
"""OpenAI's default."""

Suffix = Annotated[
    str,
    Meta(description="The text after the completion, for code models that can fill in between."),
]


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """A text completion request."""

    prompt: Annotated[
        Texts, Meta(description="A text, or its token ids; or several of them, up to 8 completions.")
    ]
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=5)] | Annotated[float, Meta(ge=0, le=5, multiple_of=1)] | None,
        Meta(description="Return the logprobs of the tokens, and of this many alternatives for each."),
    ] = None
    echo: Annotated[
        bool | None,
        Meta(description="Return the prompt before the completion; cannot be used with logprobs."),
    ] = None
    best_of: Annotated[Choices | None, Meta(description="Only the value of n is accepted.")] = None
    suffix: Suffix | None = None

    def prompts(self) -> list[str | tuple[int, ...]]:
        """Return the prompts. Raises Refusal for fields that contradict each other."""
        prompts = texts_of(self.prompt, "prompt")
        if len(prompts) * self.n_choices > MOST_CHOICES:
            raise Refusal(f"The request has more than {MOST_CHOICES} completions.", param="prompt")
        if self.best_of is not None and self.best_of != self.n_choices:
            raise Refusal("best_of must equal n, or be omitted.", param="best_of")
        if self.echo and self.logprobs is not None:
            raise Refusal("Logprobs of prompt tokens are not supported.", param="echo")
        if self.suffix and not all(isinstance(prompt, str) for prompt in prompts):
            raise Refusal("suffix requires prompts that are text.", param="suffix")
        if self.echo and not all(isinstance(prompt, str) for prompt in prompts):
            raise Refusal("echo requires prompts that are text.", param="echo")
        return prompts


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The logprobs of the tokens; the lists have the same length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the completions, or its new part."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A text completion, or a chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET


class CompletionAnswers(ChoiceAnswers[CompletionChoice]):
    """The completions of one request, as they grow."""

    kind = "cmpl"

    def __init__(self, body: CompletionBody) -> None:
        """Raise Refusal for what cannot be."""
        self._texts = body.prompts()
        super().__init__(body, prompts=len(self._texts))
        self._body = body
        self._limit = limit(body.max_tokens, _MOST_TOKENS, "max_tokens")
        self._offsets = [len(self._echo(choice)) for choice in range(self.n_choices)]
        """Characters before what comes next."""

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return what the engine is asked for one of them."""
        body = self._body
        # What the makers hold against repetition is for chats: a text may have to repeat itself.
        defaults = served.plan.sampling_for(None).without_penalties()
        return ChatRequest(
            id=f"{self._id}-{choice}",
            text=self._text(choice),
            suffix=body.suffix or "",
            logprobs=None if body.logprobs is None else int(body.logprobs),
            sampling=body.sampling(defaults, choice % body.n_choices),
            max_tokens=self._limit,
            stop=body.stops,
            overflow="error",
            priority=self.priority,
        )

    def whole(self) -> bytes:
        """Return the completions that were taken."""
        choices = [self._join(index, taken) for index, taken in enumerate(self._taken)]
        return self._encode(choices, usage=self._usage(), timings=timings_of(self._done()))

    def _first_parts(self) -> list[CompletionChoice]:
        if not self._body.echo:
            return []
        return [CompletionChoice(index=at, text=self._echo(at)) for at in range(self.n_choices)]

    def _text_part(self, choice: int, delta: Delta) -> CompletionChoice:
        logprobs = self._logprobs(choice, delta.chances) if delta.chances else None
        return CompletionChoice(index=choice, text=delta.text, logprobs=logprobs)

    def _end_part(self, choice: int, reason: FinishReason) -> CompletionChoice:
        return CompletionChoice(
            index=choice, text="", finish_reason="length" if reason == "length" else "stop"
        )

    def _join(self, index: int, parts: list[CompletionChoice]) -> CompletionChoice:
        pieces = [part.logprobs for part in parts if part.logprobs is not None]
        logprobs = CompletionLogprobs(
            [token for piece in pieces for token in piece.tokens],
            [logprob for piece in pieces for logprob in piece.token_logprobs],
            [top for piece in pieces for top in piece.top_logprobs],
            [offset for piece in pieces for offset in piece.text_offset],
        )
        return CompletionChoice(
            index=index,
            text=self._echo(index) + "".join(part.text for part in parts),
            logprobs=None if self._body.logprobs is None else logprobs,
            finish_reason=next(part.finish_reason for part in parts if part.finish_reason is not None),
        )

    def _text(self, choice: int) -> str | tuple[int, ...]:
        """Return what one of them goes on with."""
        return self._texts[choice // self._body.n_choices]

    def _echo(self, choice: int) -> str:
        """Return the text that one of them begins with."""
        text = self._text(choice)
        return text if self._body.echo and isinstance(text, str) else ""

    def _chunk(
        self,
        parts: list[CompletionChoice],
        end: Finished | None = None,
        *,
        usage: UsageBody | UnsetType = UNSET,
    ) -> bytes:
        return self._encode(parts, usage=usage, timings=UNSET if end is None else timings_of([end]))

    def _encode(
        self,
        choices: list[CompletionChoice],
        *,
        usage: UsageBody | UnsetType,
        timings: AnswerTimings | UnsetType,
    ) -> bytes:
        return msgspec.json.encode(
            Completion(
                id=self._id,
                created=self._created,
                model=self.model,
                choices=choices,
                usage=usage,
                timings=timings,
            )
        )

    def _logprobs(self, choice: int, logprobs: tuple[TokenLogprobs, ...]) -> CompletionLogprobs:
        tokens = [one.token.decode("utf-8", "replace") for one in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(token)
        others = [
            {token.decode("utf-8", "replace"): logprob for token, logprob in reversed(one.others)}
            for one in logprobs
        ]
        return CompletionLogprobs(tokens, [one.logprob for one in logprobs], others, offsets)
