"""Chooses the model to start with, for all front ends."""

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
"""Name of the preference that stores the last used model."""
_DOWNLOADS = "downloads"
"""Name of the preference that stores the two downloads to resume at the next start, one per line."""


@dataclass(frozen=True, slots=True)
class ChosenModel(Generic[T]):
    """The chosen model, and what `find` returned for it."""

    model: str
    found: T
    missing: str | None = None
    """The configured or last used model, if it was not found and the default is used instead."""
    is_first: bool = False
    """True if no model had been chosen before."""

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
    """Choose the model that the user named, else the one in settings.toml, the last used one, or the guide.

    `find` is called in a thread. If it raises ModelNotFound for a model that the user did not name, the guide
    is used instead; other errors propagate.
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
    """Return the last used model, or None. Raises StoreError."""
    return await store.preference(_PREFERENCE)


async def remember(store: Store, model: str) -> None:
    """Remember the model to start with next time. Raises StoreError."""
    await store.set_preference(_PREFERENCE, lasting_name(model))


def lasting_name(model: str) -> str:
    """Return a model name that works from any folder: the path of a file is made absolute."""
    return os.path.abspath(model) if os.path.isfile(model) else model


async def remember_downloads(store: Store, awaited: str, follower: str) -> None:
    """Remember the downloads to resume next time; '' for none. Raises StoreError.

    awaited: the model to use as soon as it is downloaded. follower: a better model to offer later.
    """
    await store.set_preference(_DOWNLOADS, f"{awaited}\n{follower}")


async def remembered_downloads(store: Store) -> tuple[str, str]:
    """Return the downloads stored by `remember_downloads`. Raises StoreError."""
    awaited, _, follower = (await store.preference(_DOWNLOADS) or "").partition("\n")
    return awaited, follower
