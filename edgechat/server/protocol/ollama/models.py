"""The models as Ollama's API lists and shows them, and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat import __version__
from edgechat.engine.types import Embedded
from edgechat.models.local.ollama.defaults import LayerTexts, layer_texts
from edgechat.server.pool.available_models import ModelCard
from edgechat.server.protocol.ollama.request import KeepAlive, Options
from edgechat.server.protocol.openai.embeddings import vector_json
from edgechat.server.protocol.openai.generation import Model
from edgechat.server.protocol.strictness import no_effect
from edgechat.server.refusal import Refusal

_MOST_TEXTS = 2048
_VECTOR: dict[str, Any] = {"type": "array", "items": {"type": "number"}}


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TaggedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model. `digest` is empty: files are not hashed to be listed."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str = ""
    details: ModelDetails
    capabilities: list[str]
    context_length: int | UnsetType = UNSET
    """Of one that is loaded."""

    @classmethod
    def of(cls, card: ModelCard) -> TaggedModel:
        """Return what is told of a model."""
        return cls(
            name=card.id,
            model=card.id,
            modified_at=_when(card),
            size=card.size,
            details=_details(card),
            capabilities=_capabilities(card),
            context_length=card.context if card.loaded else UNSET,
        )


class TagList(msgspec.Struct, frozen=True):
    """The models on this machine, or those that are loaded."""

    models: list[TaggedModel]

    @classmethod
    def of(cls, cards: Sequence[ModelCard]) -> TagList:
        """Return the list of some models."""
        return cls([TaggedModel.of(card) for card in cards])


class ShowBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to show."""

    model: Model = None
    name: Annotated[str | None, Meta(description="The older name of `model`.")] = None
    verbose: Annotated[bool | None, no_effect("Ignored: there is one form.", False)] = None


class ShownModelBody(msgspec.Struct, frozen=True, kw_only=True):
    """A model in detail. Only models from Ollama have the texts that it stores with them."""

    modelfile: str = ""
    parameters: str = ""
    system: str = ""
    template: str = ""
    license: str = ""
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str

    @classmethod
    def of(cls, card: ModelCard) -> ShownModelBody:
        """Return what is told of a model. Reads the disk: call it in a thread."""
        kind = card.architecture or "unknown"
        texts = layer_texts(card.layers) if card.layers is not None else LayerTexts()
        info = {
            "general.architecture": kind,
            "general.parameter_count": card.n_params,
            f"{kind}.context_length": card.context,
        }
        return cls(
            **msgspec.structs.asdict(texts),
            details=_details(card),
            model_info=info,
            capabilities=_capabilities(card),
            modified_at=_when(card),
        )


class VersionBody(msgspec.Struct, frozen=True):
    """The version of the server."""

    version: str = __version__


class EmbedBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed."""

    model: Model = None
    input: str | Annotated[list[str], Meta(min_length=1, max_length=_MOST_TEXTS)]
    truncate: Annotated[
        bool | None,
        Meta(description="Take what fits of texts that are too long; without it they are refused."),
    ] = None
    dimensions: Annotated[
        int | None, Meta(description="Only the model's own number of dimensions is accepted.")
    ] = None
    options: Options | None = None
    keep_alive: KeepAlive = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts. Raises Refusal if one is empty."""
        texts = (self.input,) if isinstance(self.input, str) else tuple(self.input)
        if not all(texts):
            raise Refusal("An empty text has no embedding.", param="input")
        return texts


class EmbedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings, in the order of the texts; durations in nanoseconds."""

    model: str
    embeddings: Annotated[list[Raw], Meta(extra_json_schema={"items": _VECTOR})]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text to embed, as older clients ask for it."""

    model: Model = None
    prompt: str
    options: Options | None = None
    keep_alive: KeepAlive = None


class EmbeddingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding of a text; none of an empty one."""

    embedding: Annotated[Raw, Meta(extra_json_schema=_VECTOR)]


def embed_answer(model: str, embedded: Embedded, *, total: float, load: float) -> bytes:
    """Return the JSON of embeddings; total, load: seconds. For many numbers, call it in a thread."""
    return msgspec.json.encode(
        EmbedAnswer(
            model=model,
            embeddings=[vector_json(vector) for vector in embedded.vectors],
            total_duration=int(total * 1e9),
            load_duration=int(load * 1e9),
            prompt_eval_count=embedded.tokens,
        )
    )


def _when(card: ModelCard) -> str:
    return datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _capabilities(card: ModelCard) -> list[str]:
    if card.kind != "chat":  # Ollama has no word for rerankers
        return ["embedding"] if card.kind == "embedding" else []
    able = {"vision": card.sees, "thinking": card.can_switch_thinking}
    return ["completion", "tools", *(name for name, is_so in able.items() if is_so)]


def _details(card: ModelCard) -> ModelDetails:
    billions = card.n_params / 1e9
    size = f"{billions:.1f}B" if billions >= 1 else f"{card.n_params / 1e6:.0f}M" if card.n_params else ""
    families = [card.architecture] if card.architecture else []
    return ModelDetails(
        format=card.format,
        family=card.architecture,
        families=families,
        parameter_size=size,
        quantization_level=card.quant,
    )
