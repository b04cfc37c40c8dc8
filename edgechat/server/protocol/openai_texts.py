"""Endpoints for plain text: completions, embeddings, reranking, and conversion to and from tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.engine.types import (
    MOST_CHARACTERS,
    MOST_TOKENS,
    ChatRequest,
    Embedded,
    Finished,
    Sampling,
    TokenLogprobs,
)
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.answers import Answer, BlockGrown, Change, data_event
from edgechat.server.protocol.fields import (
    MOST_CHOICES,
    Choices,
    GenerationBody,
    Model,
    Texts,
    TokenId,
    limit,
    texts_of,
    vector_json,
)
from edgechat.server.protocol.openai_answers import (
    AnswerTimings,
    ChoiceAnswers,
    UsageBody,
    timings_of,
)
from edgechat.server.refusal import Refusal
from edgechat.settings import SamplingDefaults

_MOST_TOKENS = 16
"""OpenAI's default for max_tokens."""

Suffix = Annotated[
    str,
    Meta(description="The text after the completion, for code models that can fill in between."),
]


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """A text completion request."""

    prompt: Annotated[
        Texts, Meta(description="A string or its token ids, or a list of either; up to 8 completions.")
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
            raise Refusal("suffix requires text prompts.", param="suffix")
        if self.echo and not all(isinstance(prompt, str) for prompt in prompts):
            raise Refusal("echo requires text prompts.", param="echo")
        return prompts

    def engine_request(self, prompt: str | tuple[int, ...]) -> ChatRequest:
        """Return the request to the engine for one prompt, without the parts that depend on the model."""
        return ChatRequest(
            id="",
            text=prompt,
            suffix=self.suffix or "",
            logprobs=None if self.logprobs is None else int(self.logprobs),
            max_tokens=limit(self.max_tokens, _MOST_TOKENS, "max_tokens"),
            stop=self.stops,
            overflow="error",
            priority=self.priority or "interactive",
        )


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The logprobs of the tokens. All lists have the same length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the completions or, in a stream, the next part of one."""

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


class CompletionAnswers(ChoiceAnswers):
    """The completions of one request."""

    id_prefix = "cmpl-"

    def __init__(self, body: CompletionBody) -> None:
        """Raises Refusal if the request is not valid."""
        self._prompt_texts = body.prompts()
        super().__init__(body, body.engine_request(self._prompt_texts[0]), prompts=len(self._prompt_texts))
        self._body = body
        self._offsets = [len(self._echo(choice)) for choice in range(self.n_choices)]
        """Number of characters that precede the next token of each completion."""

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return the request to the engine for one completion."""
        return msgspec.structs.replace(super().request(served, choice), text=self._prompt(choice))

    def _sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        return self._body.sampling(defaults, choice % self._body.n_choices)

    def whole(self) -> bytes:
        """Return the collected completions as JSON."""
        choices = [self._choice(index, reply) for index, reply in enumerate(self._replies)]
        return self._chunk(choices, usage=self._usage(), timings=timings_of(self._ends[0]))

    def _begin(self) -> bytes:
        return b"".join(
            self._part(CompletionChoice(index=choice, text=self._echo(choice)))
            for choice in range(self.n_choices)
            if self._body.echo
        )

    def _encode(self, choice: int, change: Change) -> bytes:
        match change:
            case BlockGrown(text=text, chances=chances):
                logprobs = self._logprobs(choice, chances) if chances else None
                return self._part(CompletionChoice(index=choice, text=text, logprobs=logprobs))
            case Finished():
                part = CompletionChoice(index=choice, text="", finish_reason=self._reason(choice))
                return self._part(part, timings=timings_of(change))
        return b""

    def _part(self, part: CompletionChoice, **more: Any) -> bytes:
        return data_event(self._chunk([part], **more))

    def _chunk(self, choices: list[CompletionChoice], **more: Any) -> bytes:
        completion = Completion(id=self._id, created=self._created, model=self.model, choices=choices, **more)
        return msgspec.json.encode(completion)

    def _choice(self, index: int, reply: Answer) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=self._echo(index) + reply.text,
            logprobs=None if self._body.logprobs is None else self._logprobs(index, reply.chances),
            finish_reason=self._reason(index),
        )

    def _reason(self, choice: int) -> Literal["stop", "length"]:
        return "length" if self._replies[choice].is_cut else "stop"

    def _prompt(self, choice: int) -> str | tuple[int, ...]:
        return self._prompt_texts[choice // self._body.n_choices]

    def _echo(self, choice: int) -> str:
        """Return the text at the start of a completion: the prompt if it should be echoed, otherwise ''."""
        prompt = self._prompt(choice)
        return prompt if self._body.echo and isinstance(prompt, str) else ""

    def _logprobs(self, choice: int, chances: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        tokens = [one.token.decode("utf-8", "replace") for one in chances]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(token)
        others = [
            {token.decode("utf-8", "replace"): logprob for token, logprob in reversed(one.others)}
            for one in chances
        ]
        return CompletionLogprobs(tokens, [one.logprob for one in chances], others, offsets)


_MOST_TEXTS = 2048
_VECTOR = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """An embeddings request."""

    model: Model = None
    input: Annotated[Texts, Meta(description="A string or its token ids, or a list of up to 2048 of either.")]
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="base64: 32-bit floats, little-endian."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | Annotated[float, Meta(ge=1, le=65536, multiple_of=1)] | None,
        Meta(description="Only the model's own number of dimensions is accepted."),
    ] = None
    user: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Ignored: nothing is stored."),
    ] = None

    def texts(self) -> list[str | tuple[int, ...]]:
        """Return each text as a string or as token ids.

        Raises Refusal for a mix of strings and ids, or for too many texts.
        """
        texts = texts_of(self.input, "input")
        if len(texts) > _MOST_TEXTS:
            raise Refusal(f"The request has more than {_MOST_TEXTS} texts.", param="input")
        return texts


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Annotated[Raw, Meta(extra_json_schema=_VECTOR)]


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """The token count for all texts together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings, in the same order as the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def embedding_list(body: EmbeddingBody, model: str, embedded: Embedded) -> bytes:
    """Return the answer as JSON.

    Must be called in a thread, because encoding many vectors can take a second.
    """
    data = [
        Embedding(index=index, embedding=vector_json(vector, body.encoding_format))
        for index, vector in enumerate(embedded.vectors)
    ]
    usage = EmbeddingUsage(embedded.tokens, embedded.tokens)
    return msgspec.json.encode(EmbeddingList(data=data, model=model, usage=usage))


_MOST_DOCUMENTS = 2048


class RerankDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document. Fields other than its text are ignored."""

    text: str


class RerankBody(msgspec.Struct, frozen=True, kw_only=True):
    """A query and documents to rank."""

    model: Model = None
    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[
        list[str | RerankDocument],
        Meta(
            min_length=1,
            max_length=_MOST_DOCUMENTS,
            description="Each must fit into the model's context together with the query.",
        ),
    ]
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Return only this many of the best results.")
    ] = None
    return_documents: Annotated[bool | None, Meta(description="Also return the texts.")] = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the documents."""
        return tuple(one if isinstance(one, str) else one.text for one in self.documents)


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a document in the request, and its score."""

    index: int
    relevance_score: Annotated[
        float, Meta(description="As computed by the model: higher is better; there is no fixed range.")
    ]
    document: RerankDocument | UnsetType = UNSET


class RerankList(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, best first."""

    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage

    @classmethod
    def of(cls, body: RerankBody, model: str, scored: Embedded) -> RerankList:
        """Return the documents, best first. scored: the scores for the texts in the body."""
        scores = struct.unpack(f"<{len(scored.vectors)}f", b"".join(scored.vectors))
        order = sorted(range(len(scores)), key=lambda at: -scores[at])[: body.top_n]
        texts = body.texts
        results = [
            RerankResult(
                index=at,
                relevance_score=scores[at],
                document=RerankDocument(text=texts[at]) if body.return_documents else UNSET,
            )
            for at in order
        ]
        usage = EmbeddingUsage(scored.tokens, scored.tokens)
        return cls(model=model, results=results, usage=usage)


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text to tokenize."""

    model: Model = None
    content: Annotated[str, Meta(max_length=MOST_CHARACTERS)]
    add_special: Annotated[
        bool | None, Meta(description="Add the token that the model expects at the beginning of a text.")
    ] = None
    parse_special: Annotated[
        bool | None,
        Meta(description="Interpret control tokens in the text, which can have up to 32,768 characters."),
    ] = None


class TokenList(msgspec.Struct, frozen=True):
    """The token ids of a text."""

    tokens: tuple[int, ...]


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens to detokenize."""

    model: Model = None
    tokens: Annotated[list[TokenId], Meta(max_length=MOST_TOKENS)]


class TokensText(msgspec.Struct, frozen=True):
    """The text that the tokens stand for, with � in place of invalid bytes."""

    content: str
