"""The model that was used last, which edgechat begins with where nobody says which."""

from __future__ import annotations

from edgechat.chat.conversation import lasting_name
from edgechat.chat.storage.store import Store

DEFAULT_MODEL = "guide"
_NAME = "model"


async def remembered(store: Store) -> str | None:
    """Return the model that was used last, or None. Raises StoreError."""
    return await store.preference(_NAME)


async def remember(store: Store, model: str) -> None:
    """Begin with this model next time. Raises StoreError."""
    await store.set_preference(_NAME, lasting_name(model))
