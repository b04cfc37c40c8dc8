"""What a model of one kind says to those that want the other: chat, or embeddings."""

from __future__ import annotations

from edgechat.base.errors import WrongKind


def cannot_chat(name: str = "This model") -> WrongKind:
    """Return the error for a chat with a model that makes embeddings."""
    return WrongKind(f"{name} is an embedding model and cannot chat.", hint="Choose a chat model.")


def cannot_embed(name: str = "This model") -> WrongKind:
    """Return the error for embeddings of a model that chats."""
    return WrongKind(f"{name} is a chat model and produces no embeddings.", hint="Choose an embedding model.")
