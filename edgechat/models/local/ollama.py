"""Ollama's models: manifests by name, and blobs by hash.

    manifests[-v2]/<host>/<namespace>/<model>/<tag>   JSON: layers, each with a media type and a digest;
                                                      a link to a blob, or the file itself
    blobs/sha256-<64 digits>                          the layers; that of the model is a GGUF file

A manifest may be a list of manifests, one for each engine; the one of a GGUF file is meant here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

MAX_MANIFESTS = 4096
MAX_BYTES = 1 << 20
"""Of a manifest, which are a kilobyte."""

_MODEL = "application/vnd.ollama.image.model"
_LIST = "application/vnd.ollama.manifest.list.v2+json"
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"

Note = Callable[[OSError, Path], None]


class _Layer(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str = ""
    digest: str = ""


class _Manifest(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str = ""
    layers: tuple[_Layer, ...] = ()
    manifests: tuple[_Manifest, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A GGUF file and its names in Ollama."""

    tags: tuple[str, ...]
    """As its own commands take them: 'llama3.2:3b'; 'latest' comes last."""
    path: Path
    size: int
    changed: int
    """Modification time in nanoseconds since 1970."""
    sha256: str


def models(root: Path, note: Note) -> Iterator[OllamaModel]:
    """Yield the models of one of Ollama's folders, by name. Unreadable files are noted and skipped."""
    named: dict[str, str] = {}
    for folder in ("manifests-v2", "manifests"):  # it looks there first
        for tag, path in _manifests(root / folder, note):
            digest = _digest(path, root, note) if tag not in named else None
            if digest is not None:
                named[tag] = digest
    tags: dict[str, list[str]] = {}
    for tag, digest in named.items():
        tags.setdefault(digest, []).append(tag)
    for digest, names in sorted(tags.items(), key=lambda pair: sorted(pair[1])):
        path = root / "blobs" / f"sha256-{digest}"
        try:
            info = os.stat(path)
        except OSError as error:
            note(error, path)
            continue
        if stat.S_ISREG(info.st_mode):
            ordered = sorted(names, key=lambda name: (name.endswith(":" + _TAG), name))
            yield OllamaModel(tuple(ordered), path, info.st_size, info.st_mtime_ns, digest)


def _manifests(root: Path, note: Note) -> Iterator[tuple[str, Path]]:
    """Yield the manifests, which are four folders deep, with their names."""
    levels = [("", root)]
    for _ in range(4):
        below: list[tuple[str, Path]] = []
        for name, folder in levels:
            try:
                listed = sorted(os.listdir(folder))
            except OSError as error:
                note(error, folder)
                continue
            below += [
                (f"{name}/{name_part}", folder / name_part)
                for name_part in listed
                if _PART.fullmatch(name_part)
            ]
        levels = below[:MAX_MANIFESTS]
    for name, path in levels:
        host, namespace, model, tag = name.lstrip("/").split("/")
        yield _short(host, namespace, model) + f":{tag}", path


def _short(host: str, namespace: str, model: str) -> str:
    if host != _HOST:
        return f"{host}/{namespace}/{model}"
    return model if namespace == _NAMESPACE else f"{namespace}/{model}"


def _digest(path: Path, root: Path, note: Note) -> str | None:
    """Return the hash of the model's file, or None unless the manifest names exactly one."""
    manifest = _read(path, note)
    if manifest is None:
        return None
    choices = [manifest]
    if manifest.media_type == _LIST:
        choices = []
        for child in manifest.manifests[:16]:
            blob = _DIGEST.fullmatch(child.digest)
            blob_manifest = _read(root / "blobs" / f"sha256-{blob[1].lower()}", note) if blob else child
            if blob_manifest is not None:
                choices.append(blob_manifest)
    for child in choices:
        digests = [layer.digest for layer in child.layers if layer.media_type == _MODEL]
        match = _DIGEST.fullmatch(digests[0]) if len(digests) == 1 else None
        if match:
            return match[1].lower()
    return None


def _read(path: Path, note: Note) -> _Manifest | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=_Manifest)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    except OSError as error:
        note(error, path)
        return None
