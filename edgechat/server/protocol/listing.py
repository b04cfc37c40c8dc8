"""Listings: models in OpenAI's and Ollama's formats, documents as vector stores, and the server's state.

/v1/models is one list for all clients, with the fields of OpenAI's, Anthropic's and Codex's lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat import __version__
from edgechat.documents.library import Given
from edgechat.models.formats.header import ModelKind
from edgechat.models.local.ollama_store import LayerTexts, layer_texts
from edgechat.server.documents import VectorStoreBody, file_id_of, filename_of
from edgechat.server.pool.models import ModelCard, State
from edgechat.server.protocol.body import no_effect
from edgechat.server.protocol.fields import FileSearchRanking, Model
from edgechat.server.refusal import Refusal


class ModelsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query parameters for the model list, which identify the client."""

    client_version: Annotated[str | None, Meta(description="The version of Codex; only Codex sends it.")] = (
        None
    )


class Modalities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can read and write, in the terms of OpenRouter's list, which many clients know."""

    input_modalities: list[Literal["text", "image", "audio"]]
    output_modalities: list[Literal["text"]]

    @classmethod
    def of(cls, card: ModelCard) -> Modalities:
        """Return the modalities that a model supports."""
        found: list[Literal["text", "image", "audio"]] = ["text"]
        found += ["image"] if card.sees else []
        found += ["audio"] if card.hears else []
        return cls(input_modalities=found, output_modalities=["text"])


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model. Extensions: whether it is loaded, its kind, its context length in tokens, and its modalities.

    `architecture` is omitted if it is not known until the model is loaded.
    """

    id: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    display_name: str
    created: int
    created_at: str
    owned_by: Literal["edgechat"] = "edgechat"
    loaded: bool
    kind: ModelKind
    context: int
    architecture: Modalities | UnsetType = UNSET

    @classmethod
    def of(cls, card: ModelCard) -> ModelEntry:
        """Describe a model."""
        return cls(
            id=card.id,
            display_name=card.id,
            created=card.created,
            created_at=_when(card),
            loaded=card.loaded,
            kind=card.kind,
            context=card.context,
            architecture=UNSET if card.sees is None else Modalities.of(card),
        )


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of models."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]
    has_more: Literal[False] = False
    first_id: str | None = None
    last_id: str | None = None
    models: Annotated[list[Any], Meta(max_length=0)] | UnsetType = UNSET
    """Model metadata for Codex, which rejects a list without this field. Always empty.

    An entry would need a system prompt that replaces Codex's own: Codex (0.149 and later) rejects a list with
    an entry that lacks one, and does not send a system prompt if it is empty.
    """

    @classmethod
    def of(cls, cards: Sequence[ModelCard], query: ModelsQuery) -> ModelList:
        """Return a list of models."""
        data = [ModelEntry.of(card) for card in cards]
        return cls(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            models=UNSET if query.client_version is None else [],
        )


class Health(msgspec.Struct, frozen=True):
    """The state of the server. Clients with the API key also get a sentence that describes it."""

    status: State
    detail: str | UnsetType = UNSET


_MOST_QUERIES = 16
_Query = Annotated[str, Meta(min_length=1, max_length=2**20)]


class StoresQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which vector stores to list."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="By name.")] = "asc"
    after: Annotated[str | None, Meta(description="Only stores after the one with this id.")] = None


class VectorStorePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of vector stores."""

    object: Literal["list"] = "list"
    data: list[VectorStoreBody]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, stores: Sequence[VectorStoreBody], query: StoresQuery) -> VectorStorePage:
        """Return the page of stores that a query requests. Raises Refusal."""
        stores = sorted(stores, key=lambda store: store.id, reverse=query.order == "desc")
        names = [store.id for store in stores]
        if query.after is not None and query.after not in names:
            raise Refusal("No vector store has this id.", param="after", code="invalid_value")
        start = 0 if query.after is None else names.index(query.after) + 1
        data = stores[start : start + query.limit]
        return cls(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=len(stores) > start + len(data),
        )


class StoreSearchBody(msgspec.Struct, frozen=True, kw_only=True):
    """A search in a vector store."""

    query: _Query | Annotated[list[_Query], Meta(min_length=1, max_length=_MOST_QUERIES)]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] = 10
    filters: Annotated[None, Meta(description="Only null is accepted: files have no attributes.")] = None
    ranking_options: FileSearchRanking | None = None
    rewrite_query: Annotated[bool | None, no_effect("Ignored: the query is used unchanged.", False)] = None

    @property
    def queries(self) -> list[str]:
        """The queries; there is at least one."""
        return [self.query] if isinstance(self.query, str) else self.query

    @property
    def text(self) -> str:
        """All queries joined into one string."""
        return "\n".join(self.queries)


class FoundContent(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a passage."""

    type: Literal["text"] = "text"
    text: str


class FoundInStore(msgspec.Struct, frozen=True, kw_only=True):
    """A passage found by a search. Its attributes contain its place in the file."""

    file_id: str
    filename: str
    score: float
    """1 divided by the rank."""
    attributes: dict[str, str]
    content: list[FoundContent]


class FoundPage(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a search, best first."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[FoundInStore]
    has_more: Literal[False] = False
    next_page: None = None


def found_page(body: StoreSearchBody, found: Sequence[Given]) -> FoundPage:
    """Return the results of a search."""
    data = [
        FoundInStore(
            file_id=file_id_of(one),
            filename=filename_of(one),
            score=1 / rank,
            attributes={"path": one.document, "place": one.source.place},
            content=[FoundContent(text=one.text)],
        )
        for rank, one in enumerate(found, 1)
    ]
    return FoundPage(search_query=body.queries, data=data)


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of a model."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TaggedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model. `digest` is empty, because files are not hashed for the list."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str = ""
    details: ModelDetails
    capabilities: list[str]
    context_length: int | UnsetType = UNSET
    """Only set for loaded models."""

    @classmethod
    def of(cls, card: ModelCard) -> TaggedModel:
        """Describe a model."""
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
    """The models on this machine, or only the loaded ones."""

    models: list[TaggedModel]

    @classmethod
    def of(cls, cards: Sequence[ModelCard]) -> TagList:
        """Return a list of models."""
        return cls([TaggedModel.of(card) for card in cards])


class ShowBody(msgspec.Struct, frozen=True, kw_only=True):
    """The model to show."""

    model: Model = None
    name: Annotated[str | None, Meta(description="The older name for `model`.")] = None
    verbose: Annotated[bool | None, no_effect("Ignored: there is only one form.", False)] = None


class ShownModelBody(msgspec.Struct, frozen=True, kw_only=True):
    """A model in detail. Only models from Ollama include texts such as the template and the license."""

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
        """Describe a model in detail. Reads from disk: call it in a thread."""
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


def _when(card: ModelCard) -> str:
    return datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _capabilities(card: ModelCard) -> list[str]:
    if card.kind != "chat":  # Ollama has no rerankers
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
