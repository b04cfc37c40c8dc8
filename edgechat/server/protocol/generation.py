"""The fields that requests for a chat's answer and for a plain completion have in common."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from edgechat.engine.types import Priority, Sampling
from edgechat.server.http.refusal import Refusal
from edgechat.server.protocol.strictness import taken
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
Seed = (
    Annotated[int, Meta(ge=-_SEEDS, le=_SEEDS - 1)]
    | Annotated[float, Meta(ge=-_SEEDS, lt=_SEEDS, multiple_of=1)]
)
Whole = Annotated[int, Meta(ge=0, le=_INT)] | Annotated[float, Meta(ge=0, le=_INT, multiple_of=1)]
Factor = Annotated[float, Meta(ge=0.01, le=5)]
Model = Annotated[
    Annotated[str, Meta(max_length=512)] | None,
    Meta(
        description="A name of /v1/models; left out, '' or 'default': the model that the server was started "
        "with."
    ),
]
UNLIMITED = -1
"""How programs written for llama.cpp and LM Studio say that only the context bounds an answer."""
Labels = Annotated[dict[str, str], Meta(max_length=16)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream tells beside the text."""

    include_usage: Annotated[
        bool | None, Meta(description="Tell at the end how many tokens it was, with no choices in the chunk.")
    ] = None
    include_obfuscation: Annotated[
        bool | None, taken("Random padding is not written, whatever is said.", False)
    ] = None


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How text is to be generated. What a field does not say is as the model's makers recommend."""

    model: Model = None
    n: Annotated[
        Choices | None,
        Meta(description="So many answers; each has a seed of its own, one more than the last one's."),
    ] = None
    stream: Annotated[bool | None, Meta(description="Send the text as it is written.")] = None
    stream_options: StreamOptions | None = None
    stop: Annotated[
        Stop | Annotated[list[Stop | None], Meta(max_length=16)] | None,
        Meta(description="End before any of these texts, up to 16 of 256 characters; blank ones are none."),
    ] = None
    max_tokens: Annotated[
        Tokens | None, Meta(description="End after so many tokens; -1: when the context is full.")
    ] = None
    seed: Annotated[
        Seed | None,
        Meta(description="The same seed gives the same text again."),
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=5)] | None, Meta(description="0 takes the likeliest token.")
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Choose among the likeliest tokens that have this probability together."),
    ] = None
    frequency_penalty: Annotated[
        Penalty | None, Meta(description="Off the scores of tokens that came lately, for each time.")
    ] = None
    presence_penalty: Annotated[
        Penalty | None, Meta(description="Off the scores of tokens that came lately, however often.")
    ] = None
    logit_bias: Annotated[
        Annotated[dict[BiasedToken, Bias], Meta(max_length=1024)] | None,
        Meta(description="Added to the scores of tokens, by their numbers."),
    ] = None
    user: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="A label, which nothing here needs: nothing is stored."),
    ] = None
    top_k: Annotated[
        Whole | None,
        Meta(description="Extension: choose among so many of the likeliest tokens; 0 among all."),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Extension: leave out tokens below this share of the likeliest one's probability."),
    ] = None
    repetition_penalty: Annotated[
        Factor | None,
        Meta(description="Extension: divide the scores of tokens that came lately by this; 1: none."),
    ] = None
    repeat_penalty: Annotated[
        Factor | None, Meta(description="The same, as llama.cpp calls it; repetition_penalty goes first.")
    ] = None
    priority: Annotated[
        Priority | None,
        Meta(description="Extension: background is computed only while nobody waits for anything else."),
    ] = None

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

    @staticmethod
    def limit(sent: float | None, usual: int | None, param: str) -> int | None:
        """Return after how many tokens to end; None: when the context is full. Raises Refusal."""
        if sent == 0:
            raise Refusal("An answer has one token at least.", param=param, code="invalid_value")
        return None if sent == UNLIMITED else int(sent) if sent else usual

    def sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        """Return how the tokens of one of the answers are chosen."""
        given = {name: getattr(self, name) for name in SamplingDefaults.__struct_fields__}
        if self.top_k is not None:
            given["top_k"] = int(self.top_k)
        if self.repetition_penalty is None:
            given["repetition_penalty"] = self.repeat_penalty
        sent = SamplingDefaults(**given)
        # numpy takes no negative seeds; the same number must stay the same.
        seed = None if self.seed is None else (int(self.seed) + choice) % (2 * _SEEDS)
        bias = tuple((int(token), amount) for token, amount in (self.logit_bias or {}).items())
        return Sampling(**sent.over(defaults).given(), seed=seed, bias=bias)
