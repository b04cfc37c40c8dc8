"""The lists of models, and the state of the server.

One list for all clients: fields of OpenAI's, Anthropic's and Codex's lists stand side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat.models.formats.header import ModelKind
from edgechat.server.pool.available_models import ModelCard
from edgechat.server.pool.models import State


class ModelsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for the list."""

    client_version: Annotated[str | None, Meta(description="The version of Codex, which sends it.")] = None


class Modalities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model reads and writes, by the names of OpenRouter's list, which many clients know."""

    input_modalities: list[Literal["text", "image", "audio"]]
    output_modalities: list[Literal["text"]]

    @classmethod
    def of(cls, *, sees: bool, hears: bool) -> Modalities:
        """Return those of a model."""
        found: list[Literal["text", "image", "audio"]] = ["text"]
        found += ["image"] if sees else []
        found += ["audio"] if hears else []
        return cls(input_modalities=found, output_modalities=["text"])


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model. Extensions: whether it is loaded, its kind, its context length in tokens, and what it reads.

    `architecture` is left out where that is not known before the model is loaded.
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
        """Return what is told of a model."""
        return cls(
            id=card.id,
            display_name=card.id,
            created=card.created,
            created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            loaded=card.loaded,
            kind=card.kind,
            context=card.context,
            architecture=UNSET
            if card.sees is None
            else Modalities.of(sees=card.sees, hears=bool(card.hears)),
        )


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of models."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]
    has_more: Literal[False] = False
    first_id: str | None = None
    last_id: str | None = None
    models: Annotated[list[Any], Meta(max_length=0)] | UnsetType = UNSET
    """For Codex, which cannot read a list without it: metadata of models. There are none.

    Each must bring a system prompt for its model, which replaces Codex's own: Codex reads no list where one
    is missing (0.149 and later), and sends none where it is empty.
    """

    @classmethod
    def of(cls, cards: Sequence[ModelCard], query: ModelsQuery) -> ModelList:
        """Return the list of some models."""
        data = [ModelEntry.of(card) for card in cards]
        return cls(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            models=UNSET if query.client_version is None else [],
        )


class Health(msgspec.Struct, frozen=True):
    """The state of the server; clients with the API key also get a sentence about it."""

    status: State
    detail: str | UnsetType = UNSET
