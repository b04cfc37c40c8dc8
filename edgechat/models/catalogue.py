"""Catalogue of models with short names. The fields are documented in models.toml."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edgechat import __version__
from edgechat.base import paths
from edgechat.base.errors import FolderError, SettingsError
from edgechat.models.formats.header import Modality, ModelKind, modalities
from edgechat.models.formats.quants import canonical
from edgechat.models.hub.names import valid_repo
from edgechat.settings import SamplingDefaults, checked, read_toml

_FILE = "catalogue.bin"
_MAX_FILE_BYTES = 4 << 20
_QUANT = "{quant}"
_LABEL = r"(?P<quant>(?:UD-)?(?:MXFP|NVFP|BF|FP|F|T?I?Q)[0-9][A-Z0-9_]*)"
_PART = r"(?:-[0-9]{5}-of-[0-9]{5})?"

Thinking = Literal["none", "always", "default-on", "default-off"]
"""Whether a model thinks before it answers: never (none), always, or depending on a switch that is initially
on (default-on) or off (default-off).
"""


class EmbeddingPrefixes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prefixes that an embedding model's developers require in its input to make embeddings comparable."""

    query: Annotated[str, Meta(max_length=1000)] = ""
    passage: Annotated[str, Meta(max_length=1000)] = ""


class CatalogueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model in the catalogue."""

    name: str
    aliases: tuple[str, ...] = ()
    description: str
    licence: str
    gated: bool = False
    """Whether its terms must be accepted on the hub before it can be downloaded."""
    repo: str | None = None
    """Repository on the hub. None for a model that is included in edgechat."""
    file: str
    """File name, with '{quant}' as a placeholder for the quantization."""
    quants: tuple[str, ...] = ()
    """Quantizations available in the repository, as spelled there."""
    quant: str | None = None
    """Recommended quantization, as spelled in the repository."""
    mlx: dict[str, str] = {}
    """MLX repositories, keyed by quantization ('4bit'). The recommended one comes first."""
    context: Annotated[int, Meta(ge=1)] | None = None
    """Context length used in training, in tokens."""
    draft: str | None = None
    """Name of the catalogue entry for the draft model."""
    no_draft: str | None = None
    """Why it has no draft model."""
    thinking: Thinking = "none"
    vision: bool = False
    """Whether the model accepts images, using the projector in its repository."""
    audio: bool = False
    """Whether the model accepts audio, using the projector in its repository."""
    quality: Annotated[int, Meta(ge=1, le=6)] | None = None
    """Quality from 1 to 6 (best). None for a model that is not meant for chatting on its own."""
    unverified: bool = False
    """Whether any of its sampling values lacks a source."""
    sampling: SamplingDefaults = SamplingDefaults()
    """Sampling recommended by the developers, with the thinking switch in its default position."""
    switched_sampling: SamplingDefaults | None = None
    """Sampling with the switch in the other position. None if it is the same."""
    embedding: EmbeddingPrefixes | None = None
    """Prefixes for an embedding model. None for any other model."""
    reranks: bool = False
    """Whether the model can only score texts as answers to a query."""
    checked: date | None = None
    """Date when the entry was last compared with its repository and with newer models."""
    superseded: str | None = None
    """Name of the entry that replaces this one. Replaced models are suggested only if they are local."""

    @property
    def names(self) -> tuple[str, ...]:
        """The entry's name and aliases."""
        return (self.name, *self.aliases)

    @property
    def kind(self) -> ModelKind:
        """What the model is used for."""
        return "reranking" if self.reranks else "chat" if self.embedding is None else "embedding"

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Kinds of input that it accepts besides text."""
        return modalities(vision=self.vision, audio=self.audio)

    @property
    def labels(self) -> tuple[str, ...]:
        """Quantizations available in the repository, in canonical spelling: 'Q4_K_M', 'F16'."""
        return tuple(canonical(quant) for quant in self.quants)

    def file_for(self, quant: str) -> str:
        """Return the name of the file with this quantization (in any spelling)."""
        labels = {
            canonical(quant_in_repo): quant_in_repo for quant_in_repo in (*self.quants, self.quant or "")
        }
        return self.file.replace(_QUANT, labels.get(canonical(quant), quant))

    def mlx_repo(self, quant: str) -> str | None:
        """Return the MLX repository with this quantization (in any spelling), or None."""
        return next((repo for label, repo in self.mlx.items() if canonical(label) == canonical(quant)), None)

    def quant_of(self, file_name: str) -> str | None:
        """Return the canonical quantization of one of this model's files, or None for any other file.

        Case is ignored. If the model is split, the file can be any of its shards.
        """
        before, has_quant, after = self.file.partition(_QUANT)
        if not has_quant:
            return None
        stem = after.removesuffix(".gguf")
        pattern = f"{re.escape(before)}{_LABEL}{re.escape(stem)}{_PART}{re.escape(after[len(stem) :])}"
        match = re.fullmatch(pattern, file_name, re.IGNORECASE)
        return canonical(match["quant"]) if match else None

    def sampling_for(self, think: bool | None) -> SamplingDefaults:
        """Return the recommended sampling with thinking on, off, or in its default state (None)."""
        default = self.thinking in ("always", "default-on")
        moved = self.thinking.startswith("default") and think is not None and think != default
        return self.switched_sampling or self.sampling if moved else self.sampling


def catalogue() -> tuple[CatalogueEntry, ...]:
    """Return the shipped catalogue, modified and extended by the user's own. Raises SettingsError."""
    own = own_catalogue()
    try:
        return _with_own(own, own.stat().st_mtime_ns)
    except FileNotFoundError:
        return _shipped_catalogue()
    except OSError as error:
        message = f"{own} cannot be read: {error.strerror}."
        raise SettingsError(message, hint="Correct or remove it.") from error


def own_catalogue() -> Path:
    """Return the path of the user's own models.toml, which may not exist."""
    return paths.config_dir() / "models.toml"


def read_catalogue(path: Path) -> tuple[CatalogueEntry, ...]:
    """Return the models in a models.toml. Raises SettingsError, naming the file, model and field."""
    return _check_names([_parse_entry(table, where) for table, where in _read_tables(path)], path)


class _ParsedCatalogue(msgspec.Struct, frozen=True, array_like=True):
    """The shipped catalogue, parsed and cached. Parsing takes 20 ms, a third of `edgechat list`'s time."""

    version: str
    """edgechat's version, since entries written by another version may have different fields."""
    stamp: tuple[str, int, int]
    """Path, size and modification time of models.toml."""
    entries: tuple[CatalogueEntry, ...]


@cache
def _shipped_catalogue() -> tuple[CatalogueEntry, ...]:
    path = paths.shipped("models.toml")
    info = path.stat()
    stamp = (str(path), info.st_size, info.st_mtime_ns)
    with contextlib.suppress(OSError, FolderError, msgspec.MsgspecError, RecursionError, ValueError):
        data = paths.read_bytes(paths.cache_dir() / _FILE, _MAX_FILE_BYTES)
        cached = msgspec.msgpack.decode(data, type=_ParsedCatalogue)
        if (cached.version, cached.stamp) == (__version__, stamp):
            return cached.entries
    entries = read_catalogue(path)
    with contextlib.suppress(OSError, FolderError, UnicodeEncodeError):
        data = msgspec.msgpack.encode(_ParsedCatalogue(__version__, stamp, entries))
        paths.replace(paths.cache_dir() / _FILE, data)
    return entries


@cache
def _with_own(own: Path, _changed_at: int) -> tuple[CatalogueEntry, ...]:
    """Return the shipped entries as modified by the user, followed by the user's own entries."""
    entries = {entry.name: entry for entry in _shipped_catalogue()}
    for table, where in _read_tables(own):
        name = table.get("name")
        base = entries.get(name) if isinstance(name, str) else None
        entry = _parse_entry(table if base is None else _table_of(base) | table, where)
        entries[entry.name] = entry
    return _check_names(entries.values(), own)


def _table_of(entry: CatalogueEntry) -> dict[str, Any]:
    """Return an entry in the form of a models.toml table."""
    fields = {name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None}
    for name in ("sampling", "switched_sampling"):
        if name in fields:
            fields[name] = fields[name].given()
    if entry.embedding is not None:
        fields["embedding"] = msgspec.structs.asdict(entry.embedding)
    return fields


def _read_tables(path: Path) -> list[tuple[dict[str, Any], str]]:
    """Return the [[model]] tables in a file, each with its location for use in error messages."""
    table = read_toml(path)
    tables = table.get("model", [])
    if set(table) - {"model"} or not isinstance(tables, list):
        raise SettingsError(
            f"{path}: only [[model]] tables are allowed at the top level, one for each model."
        )
    places: list[tuple[dict[str, Any], str]] = []
    for number, model in enumerate(tables, 1):
        where = f"{path}, model {number}"
        if not isinstance(model, dict):
            raise SettingsError(f"{where}: not a table.")
        name = model.get("name")
        places.append((model, f"{where} ({name})" if isinstance(name, str) else where))
    return places


def _check_names(entries: Iterable[CatalogueEntry], path: Path) -> tuple[CatalogueEntry, ...]:
    """Return the entries. Raises SettingsError for duplicate names and for references to missing entries."""
    checked_entries = tuple(entries)
    name_owner: dict[str, str] = {}
    for entry in checked_entries:
        for name in entry.names:
            if name in name_owner:
                raise SettingsError(f"{path}: {name!r} names both {name_owner[name]} and {entry.name}.")
            name_owner[name] = entry.name
    entry_names = {entry.name for entry in checked_entries}
    for entry in checked_entries:
        for what, other in (("draft", entry.draft), ("successor", entry.superseded)):
            if other is not None and (other not in entry_names or other == entry.name):
                raise SettingsError(
                    f"{path}: the {what} of {entry.name}, {other!r}, is not the name of another entry."
                )
    return checked_entries


def _parse_entry(table: dict[str, Any], where: str) -> CatalogueEntry:
    entry = checked(table, CatalogueEntry, where)
    for name in entry.names:
        if not name or name != name.strip().lower() or "/" in name or "\\" in name:
            raise SettingsError(f"{where}: the name {name!r} must be lower case, without slashes.")
    if (_QUANT in entry.file) != bool(entry.quant):
        raise SettingsError(f"{where}: file must contain {_QUANT} if, and only if, quant is given.")
    if entry.quants and entry.quant not in entry.quants:
        raise SettingsError(f"{where}: quant = {entry.quant!r} is not one of its quants.")
    if "/" in entry.file or "\\" in entry.file:
        raise SettingsError(f"{where}: file must be a name, not a path.")
    for label, repo in entry.mlx.items():
        if not valid_repo(repo) or not label:
            raise SettingsError(
                f"{where}: mlx says {repo!r} for {label!r}, which is not the name of a repository."
            )
    if entry.kind != "chat" and entry.quality is not None:
        raise SettingsError(f"{where}: omit quality, since {entry.kind} models cannot chat.")
    if entry.reranks and entry.embedding is not None:
        raise SettingsError(f"{where}: give either embedding or reranks: no model does both.")
    if entry.draft is not None and entry.no_draft is not None:
        raise SettingsError(f"{where}: give either draft or no_draft, the reason why there is none.")
    return entry
