"""The models that a client may name: those on this machine, by the names of `edgechat list`, and the default.

A client names no paths: it must not have the server open whatever file it likes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from edgechat import settings
from edgechat.chat.last_model import DEFAULT_MODEL, remembered
from edgechat.chat.store import Store, store_path
from edgechat.errors import EdgechatError, ModelNotFound, StoreError
from edgechat.models.hubname import parse_model_name
from edgechat.models.inventory import LocalModel, inventory
from edgechat.models.library import entry_of, local_file, resolve
from edgechat.planner.glance import glances
from edgechat.text import one_line

DEFAULT_NAMES = ("", "default")
"""Names of the model that the server was started with."""
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Known:
    """A model that is here."""

    id: str
    """What clients call it."""
    wanted: str
    """What the planner is asked for: its name in the catalogue, or its path."""
    path: Path


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be asked for."""

    id: str
    created: int
    """Seconds since 1970 at which its file was last changed."""
    loaded: bool = False
    kind: Literal["chat", "embedding"] = "chat"
    context: int = 0
    """Tokens; of one that is not loaded what it was trained on, 0 where that is not known."""


class Shelf:
    """What is on this machine now. Everything reads the disk: call it in a thread."""

    def __init__(self, default: str) -> None:
        """`default`: the model of who asks for none, a name or a path.

        Raises ModelNotFound or ModelFileError.
        """
        found = resolve(default)
        self.default = Known(found.name, default if found.entry else str(found.path), found.path)

    def find(self, name: str) -> Known:
        """Return the model that a client means. Raises ModelNotFound."""
        wanted = name.strip().casefold()
        if wanted in DEFAULT_NAMES or wanted == self.default.id.casefold():
            return self.default
        if "\0" in name or len(name) > _LONGEST:
            raise _unknown(name)
        entry = entry_of(name)
        if entry is not None:
            path = local_file(entry)
            if path is None:
                raise _not_here(entry.name)
            return self._same(Known(entry.name, entry.name, path))
        found = inventory().find(name)
        if not found:
            raise _not_here(name) if parse_model_name(name) else _unknown(name)
        return self._same(_known(found[0]))

    def _same(self, known: Known) -> Known:
        """Return the default where it is the same file, so that it is not loaded twice."""
        return self.default if known.path == self.default.path else known

    def cards(self) -> list[ModelCard]:
        """Return all that can be loaded, the default first."""
        models = [one for one in inventory().models if one.path != self.default.path]
        found = [
            ModelCard(
                id=one.name,
                created=max((int(file.changed / 1e9) for file in one.found.files), default=0),
                kind="embedding" if glance.embeds else "chat",
                context=glance.context,
            )
            for one, glance in zip(models, glances(models), strict=True)
            if not glance.damage
        ]
        return [self._default_card(), *sorted(found, key=lambda card: card.id)]

    def _default_card(self) -> ModelCard:
        path = self.default.path
        known = [one for one in inventory().models if one.path == path]
        glance = glances(known)[0] if known else None
        return ModelCard(
            id=self.default.id,
            created=int(path.stat().st_mtime) if path.exists() else int(time.time()),
            kind="embedding" if glance and glance.embeds else "chat",
            context=glance.context if glance else 0,
        )


async def first_model() -> str:
    """Return the model to begin with where nobody names one: as the settings say, else the one used last.

    Raises SettingsError.
    """
    said = settings.load().model
    if said is not None:
        return said
    try:
        if not os.path.exists(store_path()):
            return DEFAULT_MODEL
        store = await Store.open(store_path())
        try:
            last = await remembered(store) or DEFAULT_MODEL
        finally:
            await store.close()
        resolve(last)
    except (StoreError, EdgechatError):
        return DEFAULT_MODEL
    return last


def _known(one: LocalModel) -> Known:
    # By its path where only that leads to it for certain: a file in the server's folder may have the name.
    return Known(one.name, one.name if one.entry is not None else str(one.path), one.path)


def _not_here(name: str) -> ModelNotFound:
    shown = one_line(name)
    return ModelNotFound(f"{shown} is not on this machine.", hint=f"Download it: edgechat pull {shown}")


def _unknown(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"There is no model {one_line(name[:_LONGEST])!r} on this machine.",
        hint="`edgechat list` names those that are, and so does /v1/models.",
    )
