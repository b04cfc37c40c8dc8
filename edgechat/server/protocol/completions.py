"""Text that goes on: POST /v1/completions."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat.engine.types import ChatRequest, Delta, Finished, RequestEvent, TokenChance
from edgechat.server.models import Served
from edgechat.server.protocol.ending import reason_of
from edgechat.server.protocol.generation import MOST_CHOICES, Generation
from edgechat.server.protocol.usage import AnswerTimings, Usage, timings_of, usage_of
from edgechat.server.refusal import Refusal

_MOST_TOKENS = 16
"""Where nothing is said: OpenAI's own."""

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=2**20)]
Text = Annotated[str, Meta(min_length=1)]
Prompt = Text | Annotated[list[Text | TokenIds | TokenId], Meta(min_length=1, max_length=2**20)]
NoSuffix = Annotated[None, Meta(description="Only null is taken: text is gone on with, not filled in.")]


class CompletionBody(Generation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text to be gone on with."""

    prompt: Annotated[
        Prompt, Meta(description="A text, or the numbers of its tokens; or several, up to 8 completions.")
    ]
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=5)] | None,
        Meta(description="Tell how likely the tokens were, and so many others in the place of each."),
    ] = None
    echo: Annotated[bool | None, Meta(description="Begin with the prompt; not together with logprobs.")] = (
        None
    )
    best_of: Annotated[
        Literal[1] | None, Meta(description="Every completion is handed out: only 1 is taken; ask for n.")
    ] = None
    suffix: NoSuffix = None

    def prompts(self) -> list[str | tuple[int, ...]]:
        """Return the prompts. Raises Refusal where there are too many, or what they are is not clear."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        numbers = [one for one in self.prompt if isinstance(one, int)]
        if numbers and len(numbers) < len(self.prompt):
            raise Refusal("The prompt mixes numbers of tokens with texts.", param="prompt")
        if numbers:
            return [tuple(numbers)]
        found: list[str | tuple[int, ...]] = [
            one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)
        ]
        if len(found) * self.n_choices > MOST_CHOICES:
            raise Refusal(f"That would be more than {MOST_CHOICES} completions at once.", param="prompt")
        return found

    def check(self) -> None:
        """Raise Refusal for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise Refusal("stream_options needs stream: true.", param="stream_options")
        if self.echo and self.logprobs is not None:
            raise Refusal("The prompt's own tokens have no logprobs here.", param="echo")
        if self.echo and not all(isinstance(one, str) for one in self.prompts()):
            raise Refusal("echo needs prompts that are texts.", param="echo")


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """How likely the tokens were; the lists are of one length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the completions, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The completions, or what is new of them."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET


class CompletionAnswers:
    """The completions of one request, as they grow."""

    def __init__(self, body: CompletionBody) -> None:
        """Raise Refusal for what cannot be."""
        body.check()
        self._prompts = body.prompts()
        self.n_choices = len(self._prompts) * body.n_choices
        self.model = ""
        """What answers, once that is known."""
        self._body = body
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._texts = [_Text(index, self._prompt(index)) for index in range(self.n_choices)]
        self._taken: list[list[CompletionChoice]] = [[] for _ in range(self.n_choices)]

    def request(self, served: Served, choice: int) -> ChatRequest:
        """Return what the engine is asked for one of them."""
        body = self._body
        return ChatRequest(
            id=f"{self._id}-{choice}",
            text=self._prompts[choice // body.n_choices],
            logprobs=body.logprobs,
            sampling=body.sampling(served.plan.sampling_for(None), choice % body.n_choices),
            max_tokens=body.max_tokens or _MOST_TOKENS,
            stop=body.stops,
            overflow="error",
            priority=body.priority or "interactive",
        )

    def begin(self) -> list[bytes]:
        """Return the chunks that a stream begins with: the prompts, where they are wanted."""
        return [self._chunk(echo) for one in self._texts if (echo := one.echo()) is not None]

    def chunks(self, choice: int, event: RequestEvent) -> list[bytes]:
        """Return what a stream tells of an event. Raises Refusal for a text that was cut short."""
        part = self._texts[choice].of(event)
        return [] if part is None else [self._chunk(part)]

    def end(self) -> list[bytes]:
        """Return the chunks that a stream ends with."""
        return [self._envelope([], usage=self._usage())] if self._body.wants_usage else []

    def take(self, choice: int, event: RequestEvent) -> None:
        """Note an event of a completion that is sent as a whole. Raises Refusal as `chunks` does."""
        part = self._texts[choice].of(event)
        if part is not None:
            self._taken[choice].append(part)

    def whole(self) -> bytes:
        """Return the completions that were taken."""
        choices = [self._joined(index, taken) for index, taken in enumerate(self._taken)]
        return self._envelope(choices, usage=self._usage(), timings=timings_of(self._ends()))

    def _joined(self, index: int, parts: list[CompletionChoice]) -> CompletionChoice:
        told = [part.logprobs for part in parts if part.logprobs is not None]
        logprobs = CompletionLogprobs(
            [token for one in told for token in one.tokens],
            [chance for one in told for chance in one.token_logprobs],
            [chances for one in told for chances in one.top_logprobs],
            [offset for one in told for offset in one.text_offset],
        )
        ends = [part.finish_reason for part in parts if part.finish_reason is not None]
        echo = self._texts[index].echo()
        return CompletionChoice(
            index=index,
            text=(echo.text if echo else "") + "".join(part.text for part in parts),
            logprobs=logprobs if told else None,
            finish_reason=ends[0],
        )

    def _prompt(self, choice: int) -> str | None:
        """Return the text that a completion begins with."""
        prompt = self._prompts[choice // self._body.n_choices]
        return prompt if self._body.echo and isinstance(prompt, str) else None

    def _chunk(self, part: CompletionChoice) -> bytes:
        return self._envelope([part])

    def _envelope(
        self,
        choices: list[CompletionChoice],
        *,
        usage: Usage | UnsetType = UNSET,
        timings: AnswerTimings | UnsetType = UNSET,
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

    def _ends(self) -> list[Finished]:
        return [one.end for one in self._texts if one.end is not None]

    def _usage(self) -> Usage:
        return usage_of(self._ends(), prompts=len(self._prompts))


class _Text:
    """Makes the parts of one completion."""

    def __init__(self, index: int, prompt: str | None) -> None:
        self.end: Finished | None = None
        self._index = index
        self._prompt = prompt
        self._offset = len(prompt or "")

    def echo(self) -> CompletionChoice | None:
        """Return the prompt as the first part, where it is wanted."""
        return None if self._prompt is None else CompletionChoice(index=self._index, text=self._prompt)

    def of(self, event: RequestEvent) -> CompletionChoice | None:
        """Return what is new; None where nothing of it is told."""
        match event:
            case Delta():
                return CompletionChoice(
                    index=self._index,
                    text=event.text,
                    logprobs=self._logprobs(event.chances) if event.chances else None,
                )
            case Finished():
                self.end = event
                reason = reason_of(event)
                return CompletionChoice(
                    index=self._index, text="", finish_reason="length" if reason == "length" else "stop"
                )
        return None

    def _logprobs(self, chances: tuple[TokenChance, ...]) -> CompletionLogprobs:
        tokens = [one.token.decode("utf-8", "replace") for one in chances]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        others = [
            {token.decode("utf-8", "replace"): chance for token, chance in reversed(one.others)}
            for one in chances
        ]
        return CompletionLogprobs(tokens, [one.logprob for one in chances], others, offsets)
