"""Ollama's models: manifests by name, and blobs by hash.

    manifests[-v2]/<host>/<namespace>/<model>/<tag>   JSON: layers, each with a media type and a digest;
                                                      a link to a blob, or the file itself
    blobs/sha256-<64 digits>                          the layers; those of the model and of its projector are
                                                      GGUF files

A manifest may be a list of manifests, one for each engine; the one of a GGUF file is meant here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgechat.models.local.ollama.defaults import MAX_ADAPTERS, OllamaLayers

MAX_MANIFESTS = 4096
MAX_BYTES = 1 << 20
"""Of a manifest, which are a kilobyte."""

_MODEL = "application/vnd.ollama.image.model"
_PROJECTOR = "application/vnd.ollama.image.projector"
_BESIDE = "application/vnd.ollama.image."
_ADAPTER = _BESIDE + "adapter"
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


class OllamaBlob(NamedTuple):
    """A file."""

    path: Path
    size: int
    changed: int
    """Modification time in nanoseconds since 1970."""
    sha256: str


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A GGUF file and its names in Ollama."""

    tags: tuple[str, ...]
    """As its own commands take them: 'llama3.2:3b'; 'latest' comes last."""
    file: OllamaBlob
    projector: OllamaBlob | None = None
    """What makes pictures or sound readable for it."""
    layers: OllamaLayers | None = None
    """What Ollama keeps beside it; tags of the same file with other layers are another model."""


class _Digests(NamedTuple):
    """The hashes of a model's file, of its projector, and of its other layers."""

    model: str
    projector: str | None
    layers: _LayerDigests


class _LayerDigests(NamedTuple):
    """Those of `OllamaLayers`."""

    params: str | None
    system: str | None
    template: str | None
    license: str | None
    adapters: tuple[str, ...]


def models(root: Path, note: Note) -> Iterator[OllamaModel]:
    """Yield the models of one of Ollama's folders, by name. Unreadable files are noted and skipped."""
    named: dict[str, _Digests] = {}
    for folder in ("manifests-v2", "manifests"):  # it looks there first
        for tag, path in _manifests(root / folder, note):
            digests = _digests(path, root, note) if tag not in named else None
            if digests is not None:
                named[tag] = digests
    tags: dict[tuple[str, _LayerDigests], list[str]] = {}
    projectors: dict[str, str] = {}
    for tag, digests in named.items():
        tags.setdefault((digests.model, digests.layers), []).append(tag)
        if digests.projector is not None:
            projectors.setdefault(digests.model, digests.projector)
    for (digest, layers), names in sorted(tags.items(), key=lambda pair: sorted(pair[1])):
        file, of_it = _blob(root, digest, note), projectors.get(digest)
        if file is not None:
            ordered = sorted(names, key=lambda name: (name.endswith(":" + _TAG), name))
            projector = _blob(root, of_it, note) if of_it else None
            yield OllamaModel(tuple(ordered), file, projector, _layers(root, layers))


def _layers(root: Path, digests: _LayerDigests) -> OllamaLayers:
    def path(digest: str | None) -> Path | None:
        return _blob_path(root, digest) if digest else None

    return OllamaLayers(
        params=path(digests.params),
        system=path(digests.system),
        template=path(digests.template),
        license=path(digests.license),
        adapters=tuple(_blob_path(root, digest) for digest in digests.adapters),
    )


def is_blob(path: Path) -> bool:
    """Return whether a path looks like one of Ollama's files."""
    return path.parent.name == "blobs" and _DIGEST.fullmatch(path.name) is not None


def _blob_path(root: Path, digest: str) -> Path:
    return root / "blobs" / f"sha256-{digest}"


def _blob(root: Path, digest: str, note: Note) -> OllamaBlob | None:
    path = _blob_path(root, digest)
    try:
        info = os.stat(path)
    except OSError as error:
        note(error, path)
        return None
    return OllamaBlob(path, info.st_size, info.st_mtime_ns, digest) if stat.S_ISREG(info.st_mode) else None


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


def _digests(path: Path, root: Path, note: Note) -> _Digests | None:
    """Return the hashes of the model's files, or None unless the manifest names exactly one model."""
    manifest = _read(path, note)
    if manifest is None:
        return None
    choices = [manifest]
    if manifest.media_type == _LIST:
        choices = []
        for child in manifest.manifests[:16]:
            blob = _DIGEST.fullmatch(child.digest)
            blob_manifest = _read(_blob_path(root, blob[1].lower()), note) if blob else child
            if blob_manifest is not None:
                choices.append(blob_manifest)
    for child in choices:
        model, projector = _digest(child, _MODEL), _digest(child, _PROJECTOR)
        if model is not None:
            adapters = [_DIGEST.fullmatch(one.digest) for one in child.layers if one.media_type == _ADAPTER]
            found = tuple(match[1].lower() for match in adapters[:MAX_ADAPTERS] if match)
            layers = _LayerDigests(
                params=_digest(child, _BESIDE + "params"),
                system=_digest(child, _BESIDE + "system"),
                template=_digest(child, _BESIDE + "template"),
                license=_digest(child, _BESIDE + "license"),
                adapters=found,
            )
            return _Digests(model, projector, layers)
    return None


def _digest(manifest: _Manifest, media_type: str) -> str | None:
    """Return the hash of the only layer of a type; None where there is none, or several."""
    digests = [layer.digest for layer in manifest.layers if layer.media_type == media_type]
    match = _DIGEST.fullmatch(digests[0]) if len(digests) == 1 else None
    return match[1].lower() if match else None


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
