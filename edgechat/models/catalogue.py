"""The catalogue: models that can be asked for by name. models.toml says what its fields mean."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from edgechat import paths
from edgechat.errors import SettingsError
from edgechat.settings import SamplingDefaults, checked, read_toml

_QUANT = "{quant}"


class CatalogueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model of the catalogue."""

    name: str
    aliases: tuple[str, ...] = ()
    description: str
    licence: str
    repo: str | None = None
    """Its repository on the hub; None for a model that comes with edgechat."""
    file: str
    """Name of its file, in which '{quant}' stands for the quantization."""
    quant: str | None = None
    sampling: SamplingDefaults = SamplingDefaults()

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that a person may call it."""
        return (self.name, *self.aliases)

    @property
    def file_name(self) -> str:
        """Name of the file with the recommended quantization."""
        return self.file.replace(_QUANT, self.quant or "")

    @property
    def any_file(self) -> str:
        """A pattern that matches the file with any quantization."""
        return self.file.replace(_QUANT, "*")


@cache
def catalogue() -> tuple[CatalogueEntry, ...]:
    """Return the catalogue that comes with edgechat. Raises SettingsError."""
    return read_catalogue(paths.shipped("models.toml"))


def read_catalogue(path: Path) -> tuple[CatalogueEntry, ...]:
    """Return the models of a models.toml. Raises SettingsError naming the file, the model and the field."""
    table = read_toml(path)
    tables = table.get("model", [])
    if set(table) - {"model"} or not isinstance(tables, list):
        raise SettingsError(f"{path}: there is only [[model]] at the top, once for each model.")
    entries = [_entry(one, f"{path}, model {number}") for number, one in enumerate(tables, 1)]
    taken: dict[str, str] = {}
    for entry in entries:
        for name in entry.names:
            if name in taken:
                raise SettingsError(f"{path}: {name!r} names both {taken[name]} and {entry.name}.")
            taken[name] = entry.name
    return tuple(entries)


def _entry(table: Any, where: str) -> CatalogueEntry:
    if not isinstance(table, dict):
        raise SettingsError(f"{where}: that is no table.")
    if isinstance(table.get("name"), str):
        where = f"{where} ({table['name']})"
    entry = checked(table, CatalogueEntry, where)
    for name in entry.names:
        if not name or name != name.strip().lower() or "/" in name or "\\" in name:
            raise SettingsError(f"{where}: the name {name!r} must be lower case, without slashes.")
    if (_QUANT in entry.file) != bool(entry.quant):
        raise SettingsError(f"{where}: file holds {_QUANT} exactly if there is a quant.")
    if "/" in entry.file or "\\" in entry.file:
        raise SettingsError(f"{where}: file is a name, not a path.")
    return entry
