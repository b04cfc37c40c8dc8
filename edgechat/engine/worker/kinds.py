"""What a model of one kind says to those that want the other: chat, or embeddings."""

from __future__ import annotations

from edgechat.errors import WrongKind


def cannot_chat(name: str = "This model") -> WrongKind:
    """Return the error for a chat with a model that makes embeddings."""
    return WrongKind(f"{name} makes embeddings and cannot chat.", hint="Choose a model made for chat.")


def cannot_embed(name: str = "This model") -> WrongKind:
    """Return the error for embeddings of a model that chats."""
    return WrongKind(
        f"{name} is made for chat and makes no embeddings.", hint="Choose a model made for embeddings."
    )
