"""The fields that requests of OpenAI's endpoints have in common, and texts to continue or to embed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from edgechat.engine.types import Priority, Sampling
from edgechat.server.protocol.lora import Lora
from edgechat.server.protocol.strictness import no_effect
from edgechat.server.refusal import Refusal
from edgechat.settings import SamplingDefaults

_INT = 2**31 - 1
_SEEDS = 2**63
MOST_CHOICES = 8

Stop = Annotated[str, Meta(max_length=256)]
BiasedToken = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
_SOME: dict[str, Any] = {"not": {"const": 0}}
# Whole numbers, of which JSON says that 4.0 is one, too.
Tokens = (
    Annotated[int, Meta(ge=-1, le=_INT, extra_json_schema=_SOME)]
    | Annotated[float, Meta(ge=-1, le=_INT, multiple_of=1, extra_json_schema=_SOME)]
)
Choices = (
    Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | Annotated[float, Meta(ge=1, le=MOST_CHOICES, multiple_of=1)]
)
Others = Annotated[int, Meta(ge=0, le=20)] | Annotated[float, Meta(ge=0, le=20, multiple_of=1)]
Seed = (
    Annotated[int, Meta(ge=-_SEEDS, le=_SEEDS - 1)]
    | Annotated[float, Meta(ge=-_SEEDS, lt=_SEEDS, multiple_of=1)]
)
Whole = Annotated[int, Meta(ge=0, le=_INT)] | Annotated[float, Meta(ge=0, le=_INT, multiple_of=1)]
Factor = Annotated[float, Meta(ge=0.01, le=5)]
Model = Annotated[
    Annotated[str, Meta(max_length=512)] | None,
    Meta(
        description="A name listed by /v1/models. If omitted, '' or 'default': the model that the server was "
        "started with."
    ),
]
UNLIMITED = -1
"""How programs written for llama.cpp and LM Studio say that only the context bounds an answer."""
Labels = Annotated[dict[str, str], Meta(max_length=16)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_usage: Annotated[
        bool | None, Meta(description="Send a last chunk with the token counts and no choices.")
    ] = None
    include_obfuscation: Annotated[bool | None, no_effect("Ignored: no random padding is sent.", False)] = (
        None
    )


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """How text is generated. The defaults of sampling are what the model's makers recommend."""

    model: Model = None
    n: Annotated[
        Choices | None,
        Meta(description="The number of answers; each has its own seed, one more than the one before."),
    ] = None
    stream: Annotated[bool | None, Meta(description="Send the text as it is generated.")] = None
    stream_options: StreamOptions | None = None
    stop: Annotated[
        Stop | Annotated[list[Stop | None], Meta(max_length=16)] | None,
        Meta(
            description="End before any of these texts: up to 16, of up to 256 characters each; blank ones "
            "are ignored."
        ),
    ] = None
    max_tokens: Annotated[
        Tokens | None, Meta(description="End after this many tokens; -1: when the context is full.")
    ] = None
    seed: Annotated[
        Seed | None,
        Meta(description="The same seed reproduces the same text."),
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=5)] | None, Meta(description="0 always takes the most likely token.")
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Sample from the most likely tokens that have this probability together."),
    ] = None
    frequency_penalty: Annotated[
        Penalty | None,
        Meta(description="Subtracted from the scores of recent tokens, once for each occurrence."),
    ] = None
    presence_penalty: Annotated[
        Penalty | None, Meta(description="Subtracted from the scores of recent tokens.")
    ] = None
    logit_bias: Annotated[
        Annotated[dict[BiasedToken, Bias], Meta(max_length=1024)] | None,
        Meta(description="Added to the scores of tokens, by token id."),
    ] = None
    user: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Ignored: nothing is stored."),
    ] = None
    top_k: Annotated[
        Whole | None,
        Meta(description="Extension: sample from this many of the most likely tokens; 0: from all."),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Extension: drop tokens less likely than this share of the most likely one."),
    ] = None
    repetition_penalty: Annotated[
        Factor | None,
        Meta(description="Extension: divides the scores of recent tokens; 1: none."),
    ] = None
    repeat_penalty: Annotated[
        Factor | None, Meta(description="llama.cpp's name for repetition_penalty, which takes precedence.")
    ] = None
    priority: Annotated[
        Priority | None,
        Meta(description="Extension: background requests run only while nothing else is waiting."),
    ] = None
    lora: Lora = None

    @property
    def n_choices(self) -> int:
        """How many answers are wanted to one prompt."""
        return int(self.n or 1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the answer ends."""
        sent = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(one for one in sent if one)

    @property
    def overruled(self) -> tuple[str, ...]:
        """The fields that have no effect because of others."""
        penalties = {self.repetition_penalty, self.repeat_penalty} - {None}
        return ("repeat_penalty",) if len(penalties) > 1 else ()

    @property
    def wants_usage(self) -> bool:
        """Whether a stream tells the usage at its end."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        """Return how the tokens of one of the answers are chosen."""
        given = {name: getattr(self, name) for name in SamplingDefaults.__struct_fields__}
        if self.top_k is not None:
            given["top_k"] = int(self.top_k)
        if self.repetition_penalty is None:
            given["repetition_penalty"] = self.repeat_penalty
        sent = SamplingDefaults(**given)
        seed = seed_of(self.seed, choice)
        bias = tuple((int(token), amount) for token, amount in (self.logit_bias or {}).items())
        return Sampling(**sent.over(defaults).given(), seed=seed, bias=bias)


def seed_of(sent: float | None, choice: int = 0) -> int | None:
    """Return the seed of one of several answers; None for none."""
    # numpy takes no negative seeds; the same number must stay the same.
    return None if sent is None else (int(sent) + choice) % (2 * _SEEDS)


def limit(sent: float | None, usual: int | None, param: str) -> int | None:
    """Return after how many tokens to end; None: when the context is full. Raises Refusal."""
    if sent == 0:
        raise Refusal("An answer has at least one token.", param=param, code="invalid_value")
    return None if sent == UNLIMITED else int(sent) if sent else usual


TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=2**20)]
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | Annotated[list[Text | TokenIds | TokenId], Meta(min_length=1, max_length=2**20)]


def texts_of(sent: Texts, param: str) -> list[str | tuple[int, ...]]:
    """Return each text, or its tokens. Raises Refusal where what they are is not clear."""
    if isinstance(sent, str):
        return [sent]
    numbers = [one for one in sent if isinstance(one, int)]
    if numbers and len(numbers) < len(sent):
        raise Refusal(f"{param} mixes token ids and texts.", param=param)
    if numbers:
        return [tuple(numbers)]
    return [one if isinstance(one, str) else tuple(one) for one in sent if not isinstance(one, int)]
