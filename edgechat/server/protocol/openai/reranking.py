"""Documents ranked for a query, as Jina's, Cohere's and llama.cpp's servers do it: POST /v1/rerank."""

from __future__ import annotations

import struct
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat.engine.types import Embedded
from edgechat.server.protocol.openai.embeddings import EmbeddingUsage
from edgechat.server.protocol.openai.generation import Model

_MOST_DOCUMENTS = 2048


class RerankDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document; other fields of it are ignored."""

    text: str


class RerankBody(msgspec.Struct, frozen=True, kw_only=True):
    """A query, and documents to rank."""

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
        Annotated[int, Meta(ge=1)] | None, Meta(description="Return only so many, the best.")
    ] = None
    return_documents: Annotated[bool | None, Meta(description="Return the texts, too.")] = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The documents."""
        return tuple(one if isinstance(one, str) else one.text for one in self.documents)


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """A document by its place in the request, with its score."""

    index: int
    relevance_score: Annotated[
        float, Meta(description="As the model makes it: higher is better, and of no fixed range.")
    ]
    document: RerankDocument | UnsetType = UNSET


class RerankList(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, the best first."""

    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage

    @classmethod
    def of(cls, body: RerankBody, model: str, scored: Embedded) -> RerankList:
        """Return the answer. scored: the engine's, to the texts of the body."""
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
