"""What a person may mean by a model: its files, each with a header to plan by, whether it is here or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from edgechat.errors import ModelNotFound
from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.models.gguf import read_model
from edgechat.models.header import GgufHeader
from edgechat.models.hub import RemoteModel, resolve_remote
from edgechat.models.hubname import parse_model_name
from edgechat.models.library import entry_of, local_files, resolve
from edgechat.models.shipped import shipped_header, shipped_quants, shipped_size


@dataclass(frozen=True)
class Variant:
    """One file of a model, or one set of files."""

    model: str
    """What to call the model."""
    quant: str | None
    size: int
    """Bytes of the file, or of all its parts."""
    header: Callable[[], GgufHeader]
    """Reads it, once, over the network where it has to. Raises ModelFileError or HubError."""
    path: Path | None = None
    """Where it is on this machine."""
    entry: CatalogueEntry | None = None


def variants(name: str, *, offline: bool, local: bool = False) -> list[Variant]:
    """Return the files that `name` may mean: a path, a name of the catalogue, or a repository of the hub.

    local: those on this machine only. Raises ModelNotFound, ModelFileError or HubError.
    """
    entry = entry_of(name)
    if entry is not None:
        here = of_entry(entry, local=local)
        return here or [_of_path(name)]  # which says why it is not here
    if local or Path(name).expanduser().exists():
        return [_of_path(name)]
    remote = parse_model_name(name)
    if remote is None:
        return [_of_path(name)]
    found = resolve_remote(remote, offline=offline)
    if not found.choices:
        raise ModelNotFound(
            f"{found.repo} holds no GGUF file of a language model.",
            hint="Look for a repository whose name ends with -GGUF.",
        )
    return _of_hub(found)


def of_entry(entry: CatalogueEntry, *, local: bool = False) -> list[Variant]:
    """Return the files of a model of the catalogue, from small to large; what is here instead of its like."""
    here = local_files(entry)
    found = [_of_file(path, entry.name, quant or None, entry) for quant, path in here.items()]
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


def everything() -> list[list[Variant]]:
    """Return the files of every model of the catalogue that is meant for chat, best first."""
    found = [of_entry(entry) for entry in catalogue() if entry.quality is not None]
    return [one for one in found if one]


def _of_path(name: str) -> Variant:
    resolved = resolve(name)
    return _of_file(resolved.path, resolved.name, None, resolved.entry)


def _of_file(path: Path, name: str, quant: str | None, entry: CatalogueEntry | None) -> Variant:
    return Variant(name, quant, path.stat().st_size, cache(partial(read_model, path)), path, entry)


def _shipped(entry: CatalogueEntry, quant: str) -> GgufHeader:
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
