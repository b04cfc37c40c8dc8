"""Models that clients may request: the default, and those on this machine, named as in `edgechat list`.

Clients cannot specify paths, because the server would then open arbitrary files for them.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from edgechat import settings
from edgechat.base.errors import FolderError, ModelNotFound, StoreError
from edgechat.base.text import one_line
from edgechat.chat.model_choice import ChosenModel, choose_model, remembered
from edgechat.chat.storage.store import Store, store_path
from edgechat.models.hub.names import parse_model_name
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.ollama_store import is_blob
from edgechat.models.local.resolve import ResolvedModel, entry_of, find_models, local_file, resolve
from edgechat.models.local.stores import found_at
from edgechat.models.remote.model import split_remote
from edgechat.planner.listing import HeaderSummary, glances
from edgechat.planner.placement.programs import split_engine
from edgechat.server.pool.models import AvailableModel, ModelCard

DEFAULT_NAMES = ("", "default")
"""Names for the model that the server was started with."""
_LONGEST = 200
_NEAREST = 3
_LAST_SECOND = 253402300799
"""The end of the year 9999, in seconds since 1970."""


class AvailableModels:
    """The models on this machine. All methods read from disk, so call them in a thread."""

    def __init__(self, default: str) -> None:
        """default: name or path of the model for requests that do not name one.

        Raises ModelNotFound or ModelFileError.
        """
        self._of_several = False
        """Whether the planner chooses the default's file from among several quantizations."""
        if split_remote(default, settings.load().remotes) is not None:  # the remote server will find it
            self.default = AvailableModel(default, default, Path())
            return
        engine, model = split_engine(default)
        if engine is not None:  # the program that runs it will find it
            is_path = os.path.exists(os.path.expanduser(model))
            shown = os.path.basename(os.path.abspath(model)).removesuffix(".gguf") if is_path else model
            self.default = AvailableModel(f"{engine}:{shown}", default, Path())
            return
        found = resolve(default)
        if is_blob(found.path) and (here := find_models(default)) and here[0].place is Place.OLLAMA:
            self.default = AvailableModel(found.name, here[0].name, found.path)
            return
        wanted = default if found.entry else str(found.path)
        self.default = AvailableModel(found.name, wanted, found.path)
        entry = entry_of(default)
        self._of_several = entry is not None and len(inventory().of(entry)) > 1

    def find(self, name: str) -> AvailableModel:
        """Return the model that a client requests by name. Raises ModelNotFound."""
        wanted = name.strip().casefold()
        if wanted in DEFAULT_NAMES or wanted == self.default.id.casefold():
            return self.default
        if "\0" in name or len(name) > _LONGEST:
            raise _unknown(name, [])
        entry = entry_of(name)
        if entry is not None:
            path = local_file(entry)
            if path is None and (tagged := inventory().find(f"ollama/{name.strip()}")):
                return self._same(self._known(tagged[0]))  # Ollama's clients mean Ollama's model
            if path is None:
                raise _not_here(entry.name)
            return self._same(AvailableModel(entry.name, entry.name, path))
        known = inventory()
        found = known.find(name)
        if not found:
            names = [self.default.id, *(one.name for one in known.models)]
            raise _not_here(name) if parse_model_name(name) else _unknown(name, names)
        return self._same(self._known(found[0]))

    def _same(self, known: AvailableModel) -> AvailableModel:
        """Return `known`, or the default model if both use the same file, so that it is not loaded twice."""
        same = known.identity == self.default.identity and not self._of_several
        return self.default if same or known.id == self.default.id else known

    def _known(self, one: LocalModel) -> AvailableModel:
        # A default model from elsewhere may have the same name as a model in the inventory.
        named = one.full_name if one.name.casefold() == self.default.id.casefold() else one.name
        # By path if the name could be mistaken for a file in the working folder.
        by_name = one.entry is not None or is_blob(one.path)  # Ollama models may share a file
        return AvailableModel(named, one.name if by_name else str(one.path), one.path)

    def card(self, known: AvailableModel) -> ModelCard:
        """Describe a model."""
        found = [one for one in inventory().models if self._known(one).identity == known.identity]
        if not found and known.path != Path() and (elsewhere := found_at(known.path)):
            found = [LocalModel(known.id, known.id, elsewhere, quant=elsewhere.quant)]
        if found:
            return _card(known, found[0], glances(found[:1])[0])
        return ModelCard(id=known.id, created=_created(time.time()))  # remote, or in another program

    def cards(self) -> list[ModelCard]:
        """Describe all models that can be loaded, starting with the default."""
        models = [
            one
            for one in inventory().models
            if self._of_several or self._known(one).identity != self.default.identity
        ]
        found = [
            _card(self._known(one), one, glance)
            for one, glance in zip(models, glances(models), strict=True)
            if not glance.damage
        ]
        return [self.card(self.default), *sorted(found, key=lambda card: card.id)]


async def first_model(named: str | None = None) -> ChosenModel[ResolvedModel]:
    """Choose the default model. Raises the same errors as `choose_model`."""

    def find(model: str) -> ResolvedModel:
        if split_engine(model)[0] is not None or split_remote(model, settings.load().remotes) is not None:
            return ResolvedModel(Path(), model)
        return resolve(model)

    return await choose_model(named, settings.load().model, _last_used, find)


async def _last_used() -> str | None:
    with contextlib.suppress(StoreError, FolderError):
        if os.path.exists(store_path()):
            store = await Store.open_to_read(store_path())
            try:
                return await remembered(store)
            finally:
                await store.close()
    return None


def _created(seconds: float) -> int:
    """Return a file's timestamp, clamped to the range that `datetime` supports."""
    return min(max(0, int(seconds)), _LAST_SECOND)


def _card(known: AvailableModel, one: LocalModel, glance: HeaderSummary) -> ModelCard:
    return ModelCard(
        id=known.id,
        created=_created(max((file.changed / 1e9 for file in one.found.files), default=0)),
        kind=glance.kind,
        context=glance.context,
        size=one.size,
        format=one.found.format,
        quant=one.quant or glance.quant or "",
        architecture=glance.architecture,
        n_params=glance.n_params,
        sees="vision" in glance.modalities,
        hears="audio" in glance.modalities,
        layers=one.found.layers,
    )


def _not_here(name: str) -> ModelNotFound:
    shown = one_line(name)
    return ModelNotFound(f"{shown} is not on this machine.", hint=f"To download it: edgechat pull {shown}")


def _unknown(name: str, names: Sequence[str]) -> ModelNotFound:
    """Return the error for an unknown model. It suggests the closest matches among `names`."""
    by_name = {one.casefold(): one for one in names}
    near = difflib.get_close_matches(name.strip().casefold(), by_name, n=_NEAREST)
    likely = f"Did you mean {' or '.join(one_line(by_name[one]) for one in near)}? " if near else ""
    return ModelNotFound(
        f"There is no model {one_line(name[:_LONGEST])!r} on this machine.",
        hint=f"{likely}`edgechat list` and /v1/models list the models.",
    )
