"""Which model to begin with, decided in the same way by all front ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from edgechat.base.errors import ModelNotFound
from edgechat.base.text import one_line
from edgechat.chat.storage.store import Store

T = TypeVar("T")

DEFAULT_MODEL = "guide"
_LAST = "model"
"""The preference that the store keeps."""


@dataclass(frozen=True, slots=True)
class ChosenModel(Generic[T]):
    """The model, and what `find` returned for it."""

    model: str
    found: T
    missing: str | None = None
    """The model that is configured or was used last, if it is gone and the default stands in for it."""
    is_first: bool = False
    """Whether no model has ever been chosen here."""

    @property
    def note(self) -> str | None:
        """What to tell the user, or None."""
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

    If a configured or remembered model is gone, the guide stands in for it. `find` raises ModelNotFound
    for a model that is gone; it is called in a thread. Raises what `find` raises for a model that was named,
    and its errors other than ModelNotFound for any.
    """
    if named is not None:
        return ChosenModel(named, await asyncio.to_thread(find, named))
    wanted = configured or await last_used()
    missing = None
    if wanted is not None and wanted != DEFAULT_MODEL:
        try:
            return ChosenModel(wanted, await asyncio.to_thread(find, wanted))
        except ModelNotFound:
            missing = wanted
    found = await asyncio.to_thread(find, DEFAULT_MODEL)
    return ChosenModel(DEFAULT_MODEL, found, missing, is_first=wanted is None)


async def remembered(store: Store) -> str | None:
    """Return the model that was used last, or None. Raises StoreError."""
    return await store.preference(_LAST)


async def remember(store: Store, model: str) -> None:
    """Begin with this model next time. Raises StoreError."""
    await store.set_preference(_LAST, lasting_name(model))


def lasting_name(model: str) -> str:
    """Return what names this model also from another folder: the whole path, where it is a file."""
    file = Path(model)
    return str(file.absolute()) if file.is_file() else model
