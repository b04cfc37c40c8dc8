"""What a model of one kind says to those that want another: chat, embeddings or scores."""

from __future__ import annotations

from edgechat.base.errors import WrongKind


def cannot_chat(name: str = "This model") -> WrongKind:
    """Return the error for a chat with a model that makes embeddings or scores."""
    return WrongKind(
        f"{name} is an embedding or reranking model and cannot chat.", hint="Choose a chat model."
    )


def cannot_embed(name: str = "This model", query: str | None = None) -> WrongKind:
    """Return the error for embeddings, or (with a query) for scores, of a model that makes none."""
    if query is None:
        return WrongKind(
            f"{name} is no embedding model and produces no embeddings.", hint="Choose an embedding model."
        )
    return WrongKind(f"{name} is no reranking model and scores no texts.", hint="Choose a reranking model.")
