"""The extension `docs` of requests: the documents in which what helps to answer is looked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

MOST_DOCUMENTS = 16
DocumentsName = Annotated[str, Meta(min_length=1, max_length=64)]
Docs = Annotated[
    DocumentsName | Annotated[list[DocumentsName], Meta(max_length=MOST_DOCUMENTS)] | None,
    Meta(
        description="Extension: names of documents, as /v1/vector_stores lists them. Passages that help to "
        "answer are put before the last message of the user, and `sources` in the answer says where they are "
        "from. Requires `edgechat serve --docs NAME`."
    ),
]


@dataclass(frozen=True, slots=True)
class AskedDocuments:
    """What a request asks of documents."""

    names: tuple[str, ...]
    param: str = "docs"
    """The field that has the names."""
    most: int | None = None
    """Passages; None: as many as there is room for, or all documents whole."""


def asked_documents(sent: str | list[str] | None) -> AskedDocuments | None:
    """Return what the field asks; None for nothing."""
    names = (sent,) if isinstance(sent, str) else tuple(dict.fromkeys(sent or ()))
    return AskedDocuments(names) if names else None
