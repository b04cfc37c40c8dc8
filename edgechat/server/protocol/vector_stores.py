"""Documents as OpenAI's vector stores: listed and searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgechat.documents.library import Given
from edgechat.server.documents import DocumentFacts, file_id_of, filename_of
from edgechat.server.protocol.responses.tools import FileSearchRanking
from edgechat.server.protocol.strictness import no_effect
from edgechat.server.refusal import Refusal

_MOST_QUERIES = 16
_Query = Annotated[str, Meta(min_length=1, max_length=2**20)]


class StoresQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which vector stores are to be listed."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="By name.")] = "asc"
    after: Annotated[str | None, Meta(description="Those that come after the one of this id.")] = None


class FileCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many files there are with text."""

    total: int
    completed: int
    in_progress: int = 0
    failed: int = 0
    cancelled: int = 0


class VectorStoreBody(msgspec.Struct, frozen=True, kw_only=True):
    """Documents of this machine. `created_at` is when what is known of them was changed last."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    name: str
    created_at: int
    last_active_at: int
    status: Literal["completed"] = "completed"
    usage_bytes: int
    file_counts: FileCounts
    metadata: dict[str, str] = {}
    expires_after: None = None
    expires_at: None = None


class VectorStorePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the vector stores."""

    object: Literal["list"] = "list"
    data: list[VectorStoreBody]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, stores: Sequence[VectorStoreBody], query: StoresQuery) -> VectorStorePage:
        """Return those of some stores that a query wants. Raises Refusal."""
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
    rewrite_query: Annotated[bool | None, no_effect("Ignored: a query is searched for as it is.", False)] = (
        None
    )

    @property
    def queries(self) -> list[str]:
        """What is searched for."""
        return [self.query] if isinstance(self.query, str) else self.query

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.queries)


class FoundContent(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a passage."""

    type: Literal["text"] = "text"
    text: str


class FoundInStore(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that was found, with its place in the file among the attributes."""

    file_id: str
    filename: str
    score: float
    """One divided by its rank."""
    attributes: dict[str, str]
    content: list[FoundContent]


class FoundPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found, the best first."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[FoundInStore]
    has_more: Literal[False] = False
    next_page: None = None


def vector_store(facts: DocumentFacts) -> VectorStoreBody:
    """Return documents as a vector store."""
    return VectorStoreBody(
        id=facts.name,
        name=facts.name,
        created_at=int(facts.changed),
        last_active_at=int(facts.changed),
        usage_bytes=facts.size,
        file_counts=FileCounts(total=facts.files, completed=facts.files),
    )


def found_page(body: StoreSearchBody, found: Sequence[Given]) -> FoundPage:
    """Return the answer to a search."""
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
