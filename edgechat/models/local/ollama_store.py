"""Ollama's models: manifests stored by name, and layers (weights and other data) stored by hash.

    manifests[-v2]/<host>/<namespace>/<model>/<tag>   JSON: layers, each with a media type and a digest;
                                                      a symlink to a blob, or the file itself
    blobs/sha256-<64 digits>                          the layers; model and projector are GGUF files

A manifest can list manifests for several engines, in which case the one with a GGUF file is used. The other
layers are small files that anyone could have written. Each has a size limit, and unknown contents are ignored
and reported:

    params     JSON: {"temperature": 0.6, "stop": ["<|eot_id|>"], "num_ctx": 8192, ...}
    system     text; template: text, in Go's template language; license: text
    adapter    a LoRA adapter as a GGUF file
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from edgechat.base.paths import read_bytes
from edgechat.base.text import flat, one_line
from edgechat.models.local.files import ModelPartFile
from edgechat.models.local.ollama_templates import recognized
from edgechat.settings import SamplingDefaults

MAX_MANIFESTS = 4096
MAX_BYTES = 1 << 20
"""Maximum size of a manifest, in bytes. Most are about a kilobyte."""

_MODEL = "application/vnd.ollama.image.model"
_PROJECTOR = "application/vnd.ollama.image.projector"
_BESIDE = "application/vnd.ollama.image."
_TEXTS = ("params", "system", "template", "license")
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


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A GGUF file in Ollama's store, with the names it has in Ollama."""

    tags: tuple[str, ...]
    """Tags, as Ollama's commands accept them: 'llama3.2:3b'. 'latest' comes last."""
    file: ModelPartFile
    projector: ModelPartFile | None
    layers: OllamaLayers
    """All other layers. Two tags for the same file with different layers count as different models."""


class _ModelLayers(NamedTuple):
    """A manifest's layers: SHA-256 hashes of the model and its projector, and paths of the other layers."""

    model: str
    projector: str | None
    others: OllamaLayers


def models(root: Path, note: Note) -> Iterator[OllamaModel]:
    """Yield the models in one of Ollama's folders, sorted by name. Unreadable files are noted and skipped."""
    named: dict[str, _ModelLayers] = {}
    for folder in ("manifests-v2", "manifests"):  # in Ollama's order
        for tag, path in _manifests(root / folder, note):
            layers = _layers(path, root, note) if tag not in named else None
            if layers is not None:
                named[tag] = layers
    tags: dict[tuple[str, OllamaLayers], list[str]] = {}
    projectors: dict[str, str] = {}
    for tag, layers in named.items():
        tags.setdefault((layers.model, layers.others), []).append(tag)
        if layers.projector is not None:
            projectors.setdefault(layers.model, layers.projector)
    for (digest, others), names in sorted(tags.items(), key=lambda pair: sorted(pair[1])):
        file = _blob(root, digest, note)
        if file is not None:
            ordered = sorted(names, key=lambda name: (name.endswith(":" + _TAG), name))
            projector = _blob(root, projectors[digest], note) if digest in projectors else None
            yield OllamaModel(tuple(ordered), file, projector, others)


def is_blob(path: Path) -> bool:
    """Return whether a path looks like a blob in Ollama's store."""
    return path.parent.name == "blobs" and _DIGEST.fullmatch(path.name) is not None


def _blob_path(root: Path, digest: str) -> Path:
    return root / "blobs" / f"sha256-{digest}"


def _blob(root: Path, digest: str, note: Note) -> ModelPartFile | None:
    path = _blob_path(root, digest)
    try:
        info = os.stat(path)
    except OSError as error:
        note(error, path)
        return None
    regular = stat.S_ISREG(info.st_mode)
    return ModelPartFile(path, info.st_size, info.st_mtime_ns, digest) if regular else None


def _manifests(root: Path, note: Note) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each manifest. Manifests are four levels deep."""
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


def _layers(path: Path, root: Path, note: Note) -> _ModelLayers | None:
    """Return the layers in a manifest, or None unless it lists exactly one model."""
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
            digests = {kind: _digest(child, _BESIDE + kind) for kind in _TEXTS}
            texts = {kind: _blob_path(root, digest) for kind, digest in digests.items() if digest}
            adapters = [_DIGEST.fullmatch(one.digest) for one in child.layers if one.media_type == _ADAPTER]
            found = tuple(_blob_path(root, match[1].lower()) for match in adapters[:MAX_ADAPTERS] if match)
            return _ModelLayers(model, projector, OllamaLayers(**texts, adapters=found))
    return None


def _digest(manifest: _Manifest, media_type: str) -> str | None:
    """Return the hash of the layer with this type, or None unless there is exactly one."""
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


MAX_PARAMS, MAX_TEXT = 1 << 16, 1 << 18
"""Maximum sizes of the parameters layer and of any other layer, in bytes."""
MAX_STOPS, MAX_STOP = 32, 256
"""Maximum number of stop strings, and maximum number of characters in each."""
MAX_CONTEXT = 1 << 24
MAX_ADAPTERS = 4
_SHOWN = 60

_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_OF_LOADING = frozenset(
    [
        "f16_kv",
        "logits_all",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "penalize_newline",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    ]
)
"""Ollama's parameters for loading a model. They are ignored, because edgechat plans loading itself."""


class OllamaLayers(NamedTuple):
    """Paths of the layers other than the weights. Any of them can be None, and the files may not exist."""

    params: Path | None = None
    system: Path | None = None
    template: Path | None = None
    license: Path | None = None
    adapters: tuple[Path, ...] = ()


class ModelDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's defaults, which the user's settings and requests override."""

    sampling: SamplingDefaults = SamplingDefaults()
    context: int | None = None
    """Context length in tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply."""
    system: str = ""
    """System prompt for conversations that do not have one."""
    chat_format: str = ""
    """Name of the chat format recognized in the template, or '' if unknown."""
    template: str | None = None
    """Jinja source for that format, used if the file has no template of its own."""
    adapters: tuple[str, ...] = ()
    """Paths of the model's LoRA adapters."""
    licence: str = ""
    """First line of the licence."""
    unread: tuple[str, ...] = ()
    """Sentences about layers that have no effect."""


NO_DEFAULTS = ModelDefaults()


def read_defaults(layers: OllamaLayers) -> ModelDefaults:
    """Read the layers. Anything unreadable or unknown is reported in `unread`."""
    unread: list[str] = []
    params = _params(layers.params, unread)
    sampling, context, stop = _sampling(params, unread), _context(params, unread), _stop(params, unread)
    if odd := sorted(params.keys() - _OF_LOADING):
        names = ", ".join(one_line(name, 40) for name in odd[:8])
        unread.append(f"Ollama parameters that have no effect here: {names}.")
    template = _text(layers.template, "template", unread)
    found = recognized(template)
    if template.strip() and found is None:
        unread.append(
            "Ollama's template for this model is ignored: it is in Go's template language, in a format that "
            "edgechat does not know."
        )
    return ModelDefaults(
        sampling=sampling,
        context=context,
        stop=stop,
        system=_text(layers.system, "system prompt", unread).strip(),
        chat_format=found.name if found else "",
        template=found.source if found else None,
        adapters=tuple(map(str, layers.adapters)),
        licence=one_line(_text(layers.license, "license", []).strip().partition("\n")[0], 80),
        unread=tuple(unread),
    )


class LayerTexts(msgspec.Struct, frozen=True, kw_only=True):
    """A model's layers as shown by Ollama's server. Missing layers are ''."""

    parameters: str = ""
    """One line per value, with the name, padded to 30 characters, and the value in JSON. Each stop string has
    its own line.
    """
    system: str = ""
    template: str = ""
    """The template, in Go's template language."""
    license: str = ""


def layer_texts(layers: OllamaLayers) -> LayerTexts:
    """Return the text of the layers unchanged, skipping any that cannot be read."""
    unread: list[str] = []
    lines = [
        f"{one_line(name, 40):<30} {json.dumps(value)}"
        for name, values in _params(layers.params, unread).items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return LayerTexts(
        parameters="\n".join(lines),
        system=_text(layers.system, "system prompt", unread),
        template=_text(layers.template, "template", unread),
        license=_text(layers.license, "license", unread),
    )


def in_words(defaults: ModelDefaults) -> str:
    """Return the parameters on one line, or '' if there are none."""
    words = [f"{name} {value:g}" for name, value in defaults.sampling.given().items()]
    if defaults.context is not None:
        words.append(f"context {defaults.context}")
    if defaults.stop:
        words.append("stop " + " ".join(ascii(text) for text in defaults.stop))
    return ", ".join(words)


def system_in_words(defaults: ModelDefaults) -> str:
    """Return the start of the system prompt, on one line."""
    return flat(one_line(defaults.system, _SHOWN))


def _params(path: Path | None, unread: list[str]) -> dict[str, Any]:
    text = _text(path, "parameters", unread, most=MAX_PARAMS)
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    unread.append("Ollama's parameters for this model are not a JSON object.")
    return {}


def _sampling(params: dict[str, Any], unread: list[str]) -> SamplingDefaults:
    found = SamplingDefaults()
    for theirs, ours in _SAMPLING.items():
        if theirs not in params:
            continue
        value = params.pop(theirs)
        try:
            one = msgspec.convert({ours: value}, SamplingDefaults)
        except msgspec.ValidationError:
            unread.append(f"Ollama's {theirs} = {one_line(str(value), 40)} is not valid.")
            continue
        found = one.over(found)
    return found


def _context(params: dict[str, Any], unread: list[str]) -> int | None:
    if "num_ctx" not in params:
        return None
    value = params.pop("num_ctx")
    if type(value) is int and 0 < value <= MAX_CONTEXT:
        return value
    unread.append(f"Ollama's num_ctx = {one_line(str(value), 40)} is not valid.")
    return None


def _stop(params: dict[str, Any], unread: list[str]) -> tuple[str, ...]:
    found = params.pop("stop", [])
    texts = found if isinstance(found, list) else [found]
    sound = [text for text in texts[:MAX_STOPS] if isinstance(text, str) and 0 < len(text) <= MAX_STOP]
    if len(sound) < len(texts):
        unread.append(f"{len(texts) - len(sound)} of Ollama's {len(texts)} stop strings are not valid.")
    return tuple(dict.fromkeys(sound))


def _text(path: Path | None, what: str, unread: list[str], *, most: int = MAX_TEXT) -> str:
    if path is None:
        return ""
    try:
        return read_bytes(path, most).decode("utf-8", "replace")
    except OSError as error:
        unread.append(f"Ollama's {what} for this model cannot be read: {error.strerror}.")
        return ""
