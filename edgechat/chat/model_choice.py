"""Which model answers at first, in all front ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgechat.base.errors import ModelNotFound
from edgechat.base.text import one_line
from edgechat.chat.storage.store import Store

T = TypeVar("T")

DEFAULT_MODEL = "guide"
_PREFERENCE = "model"
"""The name under which the store has the model that was used last."""
_DOWNLOADS = "downloads"
"""The name under which it has the two downloads that go on at the next start, in two lines."""


@dataclass(frozen=True, slots=True)
class ChosenModel(Generic[T]):
    """The model, and what `find` returned for it."""

    model: str
    found: T
    missing: str | None = None
    """The configured or last used model, if it is gone and replaced by the default."""
    is_first: bool = False
    """Whether no model has ever been chosen here."""

    @property
    def note(self) -> str | None:
        """A message for the user, or None."""
        if self.missing is None:
            return None
        return f"{one_line(self.missing, 80)} was not found; {self.model} is used instead."


async def choose_model(
    named: str | None,
    configured: str | None,
    last_used: Callable[[], Awaitable[str | None]],
    find: Callable[[str], T],
) -> ChosenModel[T]:
    """Choose the model that the user named, else settings.toml's, else the last one used, else the guide.

    `find` is called in a thread, and raises ModelNotFound for a model that is gone; the guide replaces it
    unless it was named. Other errors of `find` are passed on.
    """
    if named is not None:
        return ChosenModel(named, await asyncio.to_thread(find, named))
    preferred = configured or await last_used()
    model = DEFAULT_MODEL if preferred is None else preferred
    try:
        return ChosenModel(model, await asyncio.to_thread(find, model), is_first=preferred is None)
    except ModelNotFound:
        if model == DEFAULT_MODEL:
            raise
    return ChosenModel(DEFAULT_MODEL, await asyncio.to_thread(find, DEFAULT_MODEL), missing=model)


async def remembered(store: Store) -> str | None:
    """Return the model that was used last, or None. Raises StoreError."""
    return await store.preference(_PREFERENCE)


async def remember(store: Store, model: str) -> None:
    """Start with this model next time. Raises StoreError."""
    await store.set_preference(_PREFERENCE, lasting_name(model))


def lasting_name(model: str) -> str:
    """Return a name that is valid in other folders too: of a file, the absolute path."""
    return os.path.abspath(model) if os.path.isfile(model) else model


async def remember_downloads(store: Store, awaited: str, follower: str) -> None:
    """Go on next time with the downloads of these models; empty: none. Raises StoreError.

    awaited: answers as soon as it is here. follower: a better one, which is offered then.
    """
    await store.set_preference(_DOWNLOADS, f"{awaited}\n{follower}")


async def remembered_downloads(store: Store) -> tuple[str, str]:
    """Return what `remember_downloads` was told last. Raises StoreError."""
    awaited, _, follower = (await store.preference(_DOWNLOADS) or "").partition("\n")
    return awaited, follower
