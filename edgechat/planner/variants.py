"""What a person may mean by a model: its files, each with a header to plan by, whether it is here or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from edgechat.errors import HubError, ModelNotFound
from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.models.gguf import read_model
from edgechat.models.header import Format, ModelHeader
from edgechat.models.hub import RemoteModel, resolve_remote
from edgechat.models.hubname import HubName, parse_model_name
from edgechat.models.inventory import Inventory, LocalModel, inventory
from edgechat.models.library import entry_of, here, resolve
from edgechat.models.places import Place
from edgechat.models.quants import canonical
from edgechat.models.shipped import shipped_header, shipped_quants, shipped_size
from edgechat.models.stores import found_at


@dataclass(frozen=True)
class Variant:
    """One file of a model, or one set of files."""

    model: str
    """What to call the model."""
    quant: str | None
    size: int
    """Bytes of the file, or of all its parts."""
    header: Callable[[], ModelHeader]
    """Reads it, once, over the network where it has to. Raises ModelFileError or HubError."""
    path: Path | None = None
    """Where it is on this machine."""
    entry: CatalogueEntry | None = None
    format: Format = "gguf"


def variants(name: str, *, offline: bool, local: bool = False) -> list[Variant]:
    """Return the files that `name` may mean: a path, a name of the catalogue or of `edgechat list`, or a
    repository of the hub.

    local: those on this machine only. Raises ModelNotFound, ModelFileError or HubError.
    """
    entry = entry_of(name)
    if entry is not None:
        known = of_entry(entry, local=local)
        return known or [of_path(name)]  # which says why it is not here
    if os.path.isfile(os.path.expanduser(name)):
        return [of_path(name)]
    found = here(name)
    files = [of_local(one) for one in found]
    remote = None if local else parse_model_name(name)
    if remote is None or any(one.place is not Place.HUB for one in found) or os.path.exists(name):
        return files or [of_path(name)]
    try:
        return _with_local(_remote(remote, offline=offline), files)
    except HubError:
        if files:
            return files
        raise


def of_local(found: LocalModel) -> Variant:
    """Return a model that is here."""
    return _of_file(found.path, _name(found), found.quant, found.entry, found.size)


def _remote(name: HubName, *, offline: bool) -> list[Variant]:
    found = resolve_remote(name, offline=offline)
    if not found.choices:
        raise ModelNotFound(
            f"{found.repo} holds no GGUF file of a language model.",
            hint="Look for a repository whose name ends with -GGUF.",
        )
    return _of_hub(found)


def _with_local(remote: list[Variant], files: list[Variant]) -> list[Variant]:
    """Return what the hub has, with what is here in the place of its like."""
    same = {(one.quant, one.size): one for one in files}
    return [same.get((one.quant, one.size), one) for one in remote]


def _name(found: LocalModel) -> str:
    return found.entry.name if found.entry is not None else found.name


def of_entry(entry: CatalogueEntry, known: Inventory | None = None, *, local: bool = False) -> list[Variant]:
    """Return the files of a model of the catalogue, from small to large; what is here instead of its like."""
    here: dict[str, LocalModel] = {}
    for one in (known or inventory()).of(entry):
        if one.quant is not None:
            here.setdefault(one.quant, one)
    found = [of_local(one) for one in here.values()]
    if not local:
        found += [
            Variant(
                model=entry.name,
                quant=quant,
                size=shipped_size(entry, quant) or 0,
                header=cache(partial(_shipped, entry, quant)),
                entry=entry,
            )
            for quant in shipped_quants(entry)
            if quant not in here
        ]
    return sorted(found, key=lambda one: one.size)


def recommended(entry: CatalogueEntry) -> Variant | None:
    """Return the file of a model of the catalogue that is recommended; None where its header is not known."""
    quant = canonical(entry.quant or "")
    return next((one for one in of_entry(entry) if one.quant == quant), None)


def everything() -> list[list[Variant]]:
    """Return the files of every model of the catalogue that is meant for chat, best first."""
    known = inventory()
    found = [of_entry(entry, known) for entry in catalogue() if entry.quality is not None]
    return [one for one in found if one]


def of_path(name: str) -> Variant:
    """Return the one file that `name` means to `resolve`. Raises ModelNotFound or ModelFileError."""
    resolved = resolve(name)
    found = found_at(resolved.path)
    return _of_file(resolved.path, resolved.name, None, resolved.entry, found.size if found else 0)


def _of_file(path: Path, name: str, quant: str | None, entry: CatalogueEntry | None, size: int) -> Variant:
    return Variant(name, quant, size, cache(partial(read_model, path)), path, entry)


def _shipped(entry: CatalogueEntry, quant: str) -> ModelHeader:
    header = shipped_header(entry, quant)
    if header is None:
        raise ModelNotFound(f"edgechat knows no header of {entry.name} in {quant}.")
    return header


def _of_hub(found: RemoteModel) -> list[Variant]:
    choices = sorted(found.choices, key=lambda one: one.total_bytes)
    several = len({one.quant for one in choices}) < len(choices)
    return [
        Variant(
            model=choice.name if several else found.repo,
            quant=choice.quant,
            size=choice.total_bytes,
            header=cache(partial(found.header, choice)),
        )
        for choice in choices
    ]
