"""Fields shared by several protocols: sampling, limits, texts, LoRA adapters, thinking, and JSON schemas."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.base.errors import BadRequest, NotAnAdapter
from edgechat.base.text import one_line
from edgechat.engine.tool_calls.tools import schema_in
from edgechat.engine.types import Effort, ModelInfo, Priority, Sampling, Tool
from edgechat.models.adapters.local import LocalAdapter, local_adapters
from edgechat.models.adapters.reading import MAX_SCALE
from edgechat.native.params import AdapterUse
from edgechat.planner.plan import LoadPlan
from edgechat.server.protocol.body import no_effect
from edgechat.server.refusal import Refusal, refusal_of
from edgechat.settings import SamplingDefaults

_INT = 2**31 - 1
_SEEDS = 2**63
MOST_CHOICES = 8

Stop = Annotated[str, Meta(max_length=256)]
BiasedToken = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
_SOME: dict[str, Any] = {"not": {"const": 0}}
# Whole numbers; in JSON, these include 4.0.
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
"""Value that means "until the context is full" in clients written for llama.cpp and LM Studio."""
RequestedPriority = Annotated[
    Priority | None,
    Meta(description="Extension: background requests run only while nothing else is waiting."),
]
Labels = Annotated[dict[str, str], Meta(max_length=16)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Stream options."""

    include_usage: Annotated[
        bool | None, Meta(description="Send a last chunk with the token counts and no choices.")
    ] = None
    include_obfuscation: Annotated[bool | None, no_effect("Ignored: no random padding is sent.", False)] = (
        None
    )


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """Options for generating text. Sampling parameters default to what the model's makers recommend."""

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
            description="End before any of these strings: up to 16, of up to 256 characters each; blank ones "
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
        Meta(description="Sample from the most likely tokens whose probabilities add up to this."),
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
    priority: RequestedPriority = None
    lora: Lora = None

    @property
    def n_choices(self) -> int:
        """The number of answers for each prompt."""
        return int(self.n or 1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the answer, and are not part of it."""
        return stops_of(self.stop)

    @property
    def overruled(self) -> tuple[str, ...]:
        """Fields that have no effect because others take precedence."""
        penalties = {self.repetition_penalty, self.repeat_penalty} - {None}
        return ("repeat_penalty",) if len(penalties) > 1 else ()

    def sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        """Return the sampling options for one answer."""
        given = {name: getattr(self, name) for name in SamplingDefaults.__struct_fields__}
        if self.top_k is not None:
            given["top_k"] = int(self.top_k)
        if self.repetition_penalty is None:
            given["repetition_penalty"] = self.repeat_penalty
        sent = SamplingDefaults(**given)
        seed = seed_of(self.seed, choice)
        bias = tuple((int(token), amount) for token, amount in (self.logit_bias or {}).items())
        return Sampling(**sent.over(defaults).given(), seed=seed, bias=bias)


def stops_of(sent: str | Sequence[str | None] | None) -> tuple[str, ...]:
    """Return the strings that end an answer, leaving out empty ones."""
    return tuple(filter(None, [sent] if isinstance(sent, str) else sent or ()))


def seed_of(sent: float | None, choice: int = 0) -> int | None:
    """Return the seed for one of several answers, or None if the request does not specify one."""
    # numpy does not accept negative seeds, and the same number must always give the same seed.
    return None if sent is None else (int(sent) + choice) % (2 * _SEEDS)


def limit(sent: float | None, usual: int | None, param: str) -> int | None:
    """Return the maximum number of tokens, or None for as many as the context holds. Raises Refusal."""
    if sent == 0:
        raise Refusal("An answer has at least one token.", param=param, code="invalid_value")
    return None if sent == UNLIMITED else int(sent) if sent else usual


TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=2**20)]
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | Annotated[list[Text | TokenIds | TokenId], Meta(min_length=1, max_length=2**20)]


def texts_of(sent: Texts, param: str) -> list[str | tuple[int, ...]]:
    """Return each text as a string or as token ids. Raises Refusal for a mix of strings and ids."""
    if isinstance(sent, str):
        return [sent]
    numbers = [one for one in sent if isinstance(one, int)]
    if numbers and len(numbers) < len(sent):
        raise Refusal(f"{param} mixes token ids and strings.", param=param)
    if numbers:
        return [tuple(numbers)]
    return [one if isinstance(one, str) else tuple(one) for one in sent if not isinstance(one, int)]


MOST = 4
_LONGEST = 512


class LoraBody(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter, identified by name or number."""

    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=_LONGEST)] | None,
        Meta(description="A name from `--lora` or `edgechat list`."),
    ] = None
    id: Annotated[
        Annotated[int, Meta(ge=0, le=1024)] | None,
        Meta(description="The position among the adapters from `--lora`, counted from 0."),
    ] = None
    scale: Annotated[
        float, Meta(ge=-MAX_SCALE, le=MAX_SCALE, description="1 applies it as it was trained; 0: not at all.")
    ] = 1.0


Lora = Annotated[
    Annotated[list[LoraBody], Meta(max_length=MOST)] | None,
    Meta(
        description="Extension: the complete list of LoRA adapters to apply; []: none. If omitted: those "
        "that `model` names after a +, else those that the server was started with."
    ),
]


def requested_adapters(
    named: Sequence[str], lora: Sequence[LoraBody] | None, plan: LoadPlan
) -> tuple[AdapterUse, ...]:
    """Return the adapters for a request. Reads from disk. Raises NotAnAdapter.

    named: adapters in the model's name, used if `lora` is None. Clients cannot specify paths.
    """
    if len(named) > MOST:
        raise NotAnAdapter(f"The model's name has {len(named)} adapters; the limit is {MOST}.")
    if lora is None:
        scales = {adapter.name.casefold(): adapter.scale for adapter in plan.adapters}
        lora = [LoraBody(name=name, scale=scales.get(name.casefold(), 1.0)) for name in named]
    return tuple(_uses(lora, plan))


def _uses(wanted: Sequence[LoraBody], plan: LoadPlan) -> Iterator[AdapterUse]:
    started_with = {adapter.name.casefold(): adapter.path for adapter in plan.adapters}
    here: list[LocalAdapter] | None = None
    for one in wanted:
        if (one.name is None) == (one.id is None):
            raise NotAnAdapter("Each adapter in lora needs either a name or an id.")
        if one.id is not None:
            if one.id >= len(plan.adapters):
                raise NotAnAdapter(f"There is no adapter {one.id}: the server has {len(plan.adapters)}.")
            yield AdapterUse(plan.adapters[one.id].path, one.scale)
            continue
        wanted_name = (one.name or "").strip().casefold()
        path = started_with.get(wanted_name)
        if path is None:
            here = local_adapters() if here is None else here
            found = (adapter for adapter in here if wanted_name in adapter.names)
            path = next((str(adapter.path) for adapter in found), None)
        if path is None:
            raise NotAnAdapter(
                f"There is no adapter {one_line(one.name or '', 80)!r} on this machine.",
                hint="`edgechat list` lists them; --lora adds others.",
            )
        yield AdapterUse(path, one.scale)


RequestedEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_EFFORTS: dict[str, Effort] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def thinking_of(
    model: ModelInfo,
    *,
    think: bool | None,
    effort: RequestedEffort | None,
    default: bool | None,
    insists: bool = True,
) -> tuple[bool | None, Effort | None]:
    """Return whether a model thinks, and for how long. Either is None if the request cannot control it.

    think, effort: from the request. default: the setting for models that can turn thinking on and off.
    insists: whether to pass `think` on even if the model cannot do so, which makes the engine refuse the
    request; False for agents, which send `think` to every model.
    """
    told = _EFFORTS[effort] if effort is not None and model.has_effort else None
    if think is None and model.can_switch_thinking:
        think = default if effort is None else effort not in ("none", "minimal")
    elif think is None and effort == "none" and not model.has_effort:
        think = False
    return think if insists or model.can_switch_thinking else None, told


SchemaText = Annotated[
    # Not decoded, so that its length can be checked first.
    Raw, Meta(description="A JSON schema.", extra_json_schema={"type": ["object", "null"]})
]
_ANY = '{"type": "object"}'


@contextmanager
def errors_about(param: str) -> Iterator[None]:
    """Attribute errors from the engine to the field `param`."""
    try:
        yield
    except BadRequest as error:
        found = refusal_of(error)
        raise Refusal(found.message, param=param, code=found.code) from error


def tool_of(
    name: str, description: str | None, parameters: Raw | UnsetType | None, *, strict: bool | None = None
) -> Tool:
    """Return a tool in the form that the engine expects. Raises BadRequest."""
    tool = Tool(name, description or "", strict=bool(strict))
    text = _text(parameters)
    return msgspec.structs.replace(tool, parameters=text) if text else tool


def allowed_tools(tools: Sequence[Tool], names: set[str]) -> tuple[Tool, ...]:
    """Return the tools with these names. Raises Refusal for an unknown name."""
    if unknown := names - {tool.name for tool in tools}:
        raise Refusal(f"{min(unknown)!r} is allowed, but is not one of the tools.", param="tool_choice")
    return tuple(tool for tool in tools if tool.name in names)


def answer_schema(sent: Raw | UnsetType | None, param: str) -> str:
    """Return the schema for an answer; by default, it allows any object. Raises Refusal."""
    with errors_about(param):
        schema = _text(sent) or _ANY
        schema_in(schema)
    return schema


def arguments_object(text: str) -> Raw:
    """Return the arguments of a call as a JSON object on one line.

    Anything else, such as the incomplete arguments in a truncated answer, is wrapped in an object.
    """
    text = text or "{}"
    try:
        is_object = isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        is_object = False
    if is_object:  # reformatted as text, so that numbers stay as written
        return Raw(msgspec.json.format(text.encode(), indent=-1))
    return Raw(msgspec.json.encode({"arguments": text}))


def _text(schema: Raw | UnsetType | None) -> str:
    """Return a schema as it was sent, or '' if there is none. Raises BadRequest."""
    try:
        text = "" if schema is UNSET or schema is None else bytes(schema).decode()
    except UnicodeDecodeError as error:
        raise BadRequest("The schema is not valid UTF-8.") from error
    return "" if text in ("null", "{}") else text


class FileSearchRanking(msgspec.Struct, frozen=True, kw_only=True):
    """How passages are ranked."""

    ranker: Annotated[str | None, no_effect("Ignored: there is only one way to rank.", "auto")] = None
    score_threshold: Annotated[
        Literal[0] | Annotated[float, Meta(ge=0, le=0)] | None,
        Meta(
            description="Only 0 is accepted: scores are derived from ranks, so a threshold would be "
            "meaningless."
        ),
    ] = None
    hybrid_search: Annotated[
        dict[str, Any] | None, no_effect("Ignored: rankings are combined with equal weights.")
    ] = None


def vector_json(vector: bytes, encoding: str | None = None) -> Raw:
    """Return a vector as JSON. Encoding only one vector at a time gives other threads a chance to run."""
    if encoding == "base64":
        return Raw(msgspec.json.encode(base64.b64encode(vector).decode()))
    return Raw(msgspec.json.encode(struct.unpack(f"<{len(vector) // 4}f", vector)))
