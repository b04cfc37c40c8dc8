"""The lists of models, and the state of the server."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.server.pool.available_models import ModelCard
from edgechat.server.pool.models import State


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model. Extensions: whether it is loaded, its kind, and its context length in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["edgechat"] = "edgechat"
    loaded: bool
    kind: Literal["chat", "embedding"]
    context: int

    @classmethod
    def of(cls, card: ModelCard) -> ModelEntry:
        """Return what is told of a model."""
        return cls(id=card.id, created=card.created, loaded=card.loaded, kind=card.kind, context=card.context)


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of models."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Health(msgspec.Struct, frozen=True):
    """The state of the server; clients with the API key also get a sentence about it."""

    status: State
    detail: str | UnsetType = UNSET
