"""LoRA adapters for llama.cpp: checked when a request comes, loaded at its first call, kept for others."""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import psutil

from edgechat.base.errors import DecodeFailed, LoadFailed, NotAnAdapter
from edgechat.base.text import mebibytes, one_line
from edgechat.engine.backends.base import ActiveAdapter, AdapterSet, FileVersion, adapter_set
from edgechat.models.adapters.peft import open_adapter
from edgechat.models.adapters.reading import CONFIG, WEIGHTS, AdapterUse, checked_scale
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.header import ModelHeader
from edgechat.native.handles import AdapterPointer, Context, Model

MOST_USED = 4
"""Adapters of one request: llama.cpp's graphs of some architectures have no room for many more."""
MOST_LOADED = 16
"""Adapters in memory; the least recently used ones make room for others."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A file or folder that fits the model."""

    source: FileVersion
    adapter: ActiveAdapter
    """With scale 1."""


class LlamaCppAdapters:
    """The adapters of one model."""

    def __init__(self, model: Model, context: Context, model_path: str) -> None:
        self._model, self._context = model, context
        self._model_path = model_path
        self._lock = threading.Lock()
        self._checked: dict[str, _Checked] = {}
        """By the path of a file or folder."""
        self._loaded: dict[str, AdapterPointer] = {}
        """By digest, the least recently used first."""
        self._used: AdapterSet = ()

    @cached_property
    def _header(self) -> ModelHeader:
        return read_model(Path(self._model_path))

    def resolve(self, wanted: Sequence[AdapterUse]) -> AdapterSet:
        if len(wanted) > MOST_USED:
            raise NotAnAdapter(f"{len(wanted)} adapters at once are too many; the limit is {MOST_USED}.")
        with self._lock:
            return adapter_set(self._resolved(one) for one in wanted)

    def _resolved(self, wanted: AdapterUse) -> ActiveAdapter:
        scale, path = checked_scale(wanted.scale), Path(wanted.path)
        try:
            checked, source = self._checked.get(wanted.path), _source_version(path)
            if checked is None or checked.source != source or not os.path.exists(checked.adapter.path):
                file = open_adapter(path, self._header).path
                version = _version(file)
                checked = _Checked(source, ActiveAdapter(_digest(file), 1.0, str(file), version))
                self._checked[wanted.path] = checked
        except OSError as error:
            why = error.strerror or error
            raise NotAnAdapter(f"The adapter {one_line(wanted.path)} cannot be read: {why}.") from error
        return replace(checked.adapter, scale=scale)

    def use(self, adapters: AdapterSet) -> None:
        if adapters == self._used:
            return
        needed = {adapter.digest for adapter in adapters}
        missing = [adapter for adapter in adapters if adapter.digest not in self._loaded]
        if missing:
            self._make_room(needed, len(missing))
        for adapter in missing:
            self._loaded[adapter.digest] = self._load(adapter)
        for adapter in adapters:
            self._loaded[adapter.digest] = self._loaded.pop(adapter.digest)
        self._context.use_adapters([(self._loaded[one.digest], one.scale) for one in adapters])
        self._used = adapters

    def _make_room(self, needed: set[str], n_more: int) -> None:
        """Free adapters that were used longest ago, none of which the context has any more."""
        self._context.use_adapters([])
        self._used = ()
        for digest in [digest for digest in self._loaded if digest not in needed]:
            if len(self._loaded) + n_more <= MOST_LOADED:
                break
            self._model.free_adapter(self._loaded.pop(digest))

    def _load(self, adapter: ActiveAdapter) -> AdapterPointer:
        """Load what was checked, if the file is still that."""
        path = Path(adapter.path)
        try:
            size = path.stat().st_size
            if size > psutil.virtual_memory().available // 2:
                raise DecodeFailed(f"There is no memory for the adapter {path.name} ({mebibytes(size)}).")
            if _version(path) != adapter.version:
                raise DecodeFailed(f"The adapter {path.name} has changed.", hint="Send the request again.")
            return self._model.load_adapter(path)
        except (LoadFailed, OSError) as error:
            raise DecodeFailed(f"The adapter {path.name} cannot be loaded: {error}") from error


def _source_version(path: Path) -> FileVersion:
    return _version(path / CONFIG) + _version(path / WEIGHTS) if path.is_dir() else _version(path)


def _version(path: Path) -> FileVersion:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
