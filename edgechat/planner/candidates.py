"""Candidates: the files that a model name can refer to, and which of them can run here.

A candidate can be planned even if its file is not on this machine, because its header is available. An MLX
model is a folder, and counts as one file. llama.cpp reads GGUF files and MLX reads its own folders, so
choosing a backend means choosing a file. The two backends are compared only on Apple Silicon, where MLX has a
GPU. Elsewhere MLX runs only models that have no GGUF file.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from edgechat.base.errors import BackendMissing, HubError, ModelFileError, ModelNotFound
from edgechat.base.process.spawn import frozen
from edgechat.base.text import one_line
from edgechat.device.mlx import missing
from edgechat.device.profile import DeviceProfile
from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.models.choices import ModelChoice, RemoteFile
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import Format, GgufArray, ModelHeader, senses, show
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.formats.mtp import HeadFile, misfit
from edgechat.models.formats.quants import canonical
from edgechat.models.hub.listing import RemoteModel, resolve_remote
from edgechat.models.hub.names import parse_model_name
from edgechat.models.local.files import ModelPartFile
from edgechat.models.local.inventory import Inventory, LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.ollama_store import ModelDefaults, is_blob, read_defaults
from edgechat.models.local.resolve import entry_of, local_file, local_models, resolve
from edgechat.models.local.stores import found_at, is_model_folder
from edgechat.models.shipped import mlx_header_of, shipped_header, shipped_quants, shipped_size
from edgechat.planner.companions import TOWER, ProjectorFile, header_beside
from edgechat.planner.request import BACKENDS, PlanRequest
from edgechat.settings import Backend

FoundProjector = tuple[ProjectorFile | None, str]
FoundHead = tuple[HeadFile | None, str]


@dataclass(frozen=True)
class Variant:
    """One file of a model, or one set of files that belong together."""

    model: str
    quant: str | None
    size: int
    """Total size of all parts in bytes."""
    header: Callable[[], ModelHeader]
    """Reads the header once, over the network if necessary. Raises ModelFileError or HubError."""
    path: Path | None = None
    entry: CatalogueEntry | None = None
    format: Format = "gguf"
    projector: Callable[[], FoundProjector] = lambda: (None, "")
    """Reads the projector's header once, over the network if necessary.

    Returns None and the reason, as a sentence, if a model that supports images or audio has no projector.
    """
    defaults: Callable[[], ModelDefaults] = ModelDefaults
    """Reads the file's Ollama defaults once."""
    head: Callable[[], FoundHead] = lambda: (None, "")
    """Reads the header of separate drafting layers once, over the network if necessary.

    Returns None and '' if there are none, or None and the reason if their file cannot be used.
    """

    @property
    def backend(self) -> Backend:
        """The backend that runs this variant."""
        return BACKENDS[self.format]


def variants(name: str, *, offline: bool, local: bool = False) -> list[Variant]:
    """Return the files that a name can refer to.

    name: a path, or the name of a catalogue model, local model or hub repository. local: return only files on
    this machine. Raises ModelNotFound, ModelFileError or HubError.
    """
    entry = entry_of(name)
    if entry is not None:
        known = of_entry(entry, local=local)
        return known or [of_path(name)]  # raises the error that explains why it is not here
    path = Path(os.path.expanduser(name))
    if os.path.isfile(path) or is_model_folder(path):
        return [of_path(name)]
    models = local_models(name)
    files = [of_local(model) for model in models]
    request = None if local else parse_model_name(name)
    if request is None or any(model.place is not Place.HUB for model in models) or os.path.exists(name):
        return files or [of_path(name)]
    try:
        remote = resolve_remote(request, offline=offline)
        on_disk = {_identity(file): file for file in files}
        in_repo = of_choices(remote, remote.choices, remote.repo)
        return [on_disk.get(_identity(file), file) for file, _ in in_repo]
    except HubError:
        if files:
            return files
        raise


def of_local(model: LocalModel) -> Variant:
    """Return a local model as a variant."""
    name = model.entry.name if model.entry is not None else model.name
    found = model.found
    variant = _of_file(model.path, name, model.quant, model.entry, model.size, found.format)
    variant = _with_companions(variant, found.projector, found.head)
    if found.layers is not None:
        variant = replace(variant, defaults=cache(partial(read_defaults, found.layers)))
    if not model.missing_modalities:
        return variant
    missing = (
        f"The model {senses(model.missing_modalities)} with its projector, which is not on this machine."
    )
    why = f"{missing} To download it: edgechat pull {name}"
    return replace(variant, projector=lambda: (None, why))


def _identity(file: Variant) -> tuple[Format, str | None, int]:
    # A repository holds only one MLX model, whose name might not contain the quantization.
    return file.format, file.quant if file.format == "gguf" else None, file.size


def of_entry(
    entry: CatalogueEntry, known: Inventory | None = None, *, local: bool = False, mlx: bool = True
) -> list[Variant]:
    """Return a catalogue model's files, smallest first, preferring local ones.

    mlx: also return MLX models that are not on this machine.
    """
    here: dict[tuple[Format, str], LocalModel] = {}
    for model in (known or inventory()).of(entry):
        if model.quant is not None:
            here.setdefault((model.found.format, model.quant), model)
    files = [of_local(model) for model in here.values()]
    if not local and mlx:
        files += filter(None, (_of_mlx(entry, label) for label in entry.mlx if ("mlx", label) not in here))
    if not local:
        for quant in shipped_quants(entry):
            if ("gguf", quant) not in here:
                header, size = cache(partial(_shipped, entry, quant)), shipped_size(entry, quant) or 0
                why = partial(_not_pulled, entry)
                files.append(Variant(entry.name, quant, size, header, entry=entry, projector=why))
    return sorted(files, key=lambda file: file.size)


def _of_mlx(entry: CatalogueEntry, label: str) -> Variant | None:
    header = mlx_header_of(entry, label)
    if header is None:
        return None
    return Variant(entry.name, label, header.file_size, lambda: header, entry=entry, format="mlx")


def recommended(entry: CatalogueEntry, format: Format = "gguf") -> Variant | None:
    """Return the recommended file of a catalogue model, or None if its header is unknown."""
    files = {file.quant: file for file in of_entry(entry) if file.format == format}
    return next((files[label] for label in _recommended(entry, format) if label in files), None)


def local_of(entry: CatalogueEntry, format: Format) -> Variant | None:
    """Return a local file of a catalogue model, preferably the recommended one, or None."""
    if format == "gguf" and entry.quant is None:
        return of_path(entry.name) if local_file(entry) is not None else None
    files = [file for file in of_entry(entry, local=True) if file.format == format]
    best = next((file for file in files if file.quant in _recommended(entry, format)), None)
    return best or next(iter(files), None)


def _recommended(entry: CatalogueEntry, format: Format) -> list[str]:
    return [canonical(entry.quant or "")] if format == "gguf" else list(entry.mlx)


def everything(*, mlx: bool = False) -> list[list[Variant]]:
    """Return the files of every chat model in the catalogue, best model first.

    Superseded models are included only if they are on this machine. mlx: also return MLX models that are not
    on this machine.
    """
    known = inventory()
    chat = [entry for entry in catalogue() if entry.quality is not None]
    models = (of_entry(entry, known, local=entry.superseded is not None, mlx=mlx) for entry in chat)
    return [files for files in models if files]


def of_path(name: str) -> Variant:
    """Return the file that `resolve` finds for `name`. Raises ModelNotFound or ModelFileError."""
    resolved = resolve(name)
    if is_blob(resolved.path) and (models := local_models(str(resolved.path))):
        return of_local(models[0])
    stored = found_at(resolved.path)
    size, format = (stored.size, stored.format) if stored else (0, "gguf")
    variant = _of_file(resolved.path, resolved.name, None, resolved.entry, size, format)
    return _with_companions(variant, stored.projector, stored.head) if stored else variant


def _of_file(
    path: Path,
    name: str,
    quant: str | None,
    entry: CatalogueEntry | None,
    size: int,
    format: Format,
) -> Variant:
    return Variant(name, quant, size, cache(partial(read_model, path)), path, entry, format)


def _with_companions(
    variant: Variant, projector: ModelPartFile | None, head: ModelPartFile | None
) -> Variant:
    if projector is not None or variant.format == "mlx":
        path = projector.path if projector is not None else variant.path
        variant = replace(variant, projector=cache(lambda: _local_projector(variant.header(), path)))
    if head is not None:
        variant = replace(variant, head=cache(lambda: _local_head(variant.header(), head.path)))
    return variant


def _local_head(header: ModelHeader, path: Path) -> FoundHead:
    head, why_not = _head(path.name, lambda: read_header(path), header)
    return replace(head, path=str(path)) if head is not None else None, why_not


def remote_head(remote: RemoteModel, file: RemoteFile, header: ModelHeader) -> FoundHead:
    """Return a hub model's separate drafting layers, or None and the reason they cannot be used."""
    return _head(file.name.rpartition("/")[2], lambda: remote.companion(file), header)


def _head(name: str, read: Callable[[], ModelHeader], header: ModelHeader) -> FoundHead:
    try:
        head = read()
        problem = misfit(head, header)
    except (HubError, ModelFileError) as error:
        return None, f"Its drafting layers in {one_line(name)} cannot be used: {error.message}"
    if problem:
        return None, f"The drafting layers in {one_line(name)} do not belong to this model: {problem}."
    return HeadFile(one_line(name), head), ""


def _local_projector(header: ModelHeader, path: Path | None) -> FoundProjector:
    """Return a local model's projector: a separate file or, for MLX, the model's own vision tower.

    path: the projector's file, or the folder of an MLX model; None if it is not on this machine.
    """
    projector, problem = header_beside(header, path)
    if projector is None:
        return None, problem
    name = path.name if path is not None and header.format != "mlx" else TOWER
    return ProjectorFile(name, projector, str(path or "")), ""


def remote_projector(remote: RemoteModel, file: RemoteFile, header: ModelHeader) -> FoundProjector:
    """Return a hub model's projector, or None and the reason it cannot be used."""
    name = one_line(file.name.rpartition("/")[2])
    try:
        projector = remote.projector(file)
    except (HubError, ModelFileError) as error:
        return None, f"Its projector cannot be used. {error.message}"
    misfit = projector.misfit(header)
    if misfit:
        return None, f"{name} does not belong to this model: {misfit}."
    return ProjectorFile(name, projector), ""


def _not_pulled(entry: CatalogueEntry) -> FoundProjector:
    """Return why a catalogue model that is not on this machine is planned without its projector."""
    if not entry.modalities:
        return None, ""
    can = senses(entry.modalities)
    return (
        None,
        f"The model {can} with its projector, which is downloaded with it but is not part of this plan.",
    )


def _shipped(entry: CatalogueEntry, quant: str) -> ModelHeader:
    header = shipped_header(entry, quant)
    if header is None:
        raise ModelNotFound(f"edgechat has no header for {entry.name} in {quant}.")
    return header


def of_choices(
    remote: RemoteModel, choices: Sequence[ModelChoice], name: str
) -> list[tuple[Variant, ModelChoice]]:
    """Return the models in a hub repository, smallest first. name: the name that they share."""
    choices = sorted(choices, key=lambda choice: choice.total_bytes)
    several = len({choice.quant for choice in choices}) < len(choices)
    return [
        (
            Variant(
                model=choice.name if several else name,
                quant=choice.quant,
                size=choice.total_bytes,
                header=(header := cache(partial(remote.header, choice))),
                format=choice.format,
                projector=cache(partial(_projector_of_choice, remote, choice, header)),
                head=cache(partial(_head_of_choice, remote, choice, header)),
            ),
            choice,
        )
        for choice in choices
    ]


def _projector_of_choice(
    remote: RemoteModel, choice: ModelChoice, header: Callable[[], ModelHeader]
) -> FoundProjector:
    if choice.format == "mlx":
        return _local_projector(header(), None)
    return remote_projector(remote, choice.projectors[0], header()) if choice.projectors else (None, "")


def _head_of_choice(remote: RemoteModel, choice: ModelChoice, header: Callable[[], ModelHeader]) -> FoundHead:
    return remote_head(remote, choice.heads[0], header()) if choice.heads else (None, "")


_PACKAGES = {
    ("darwin", "arm64"): "mlx-lm",
    ("linux", "x86_64"): "'mlx[cpu]' mlx-lm",
    ("linux", "aarch64"): "'mlx[cpu]' mlx-lm",
}


def weighs_mlx(profile: DeviceProfile, request: PlanRequest) -> bool:
    """Return whether MLX models in the catalogue are considered even if the user did not name one."""
    if request.backend is not None:
        return request.backend == "mlx"
    if request.prefers is not None:
        return request.prefers == "mlx" and profile.mlx
    return profile.mlx_card is not None


def runnable(files: Sequence[Variant], profile: DeviceProfile, request: PlanRequest) -> list[Variant]:
    """Return the files of a model that can run here. Raises BackendMissing if there are none."""
    if request.backend == "mlx" and not profile.mlx:
        raise without_mlx("MLX is not available.")
    if request.backend is not None:
        chosen = [file for file in files if file.backend == request.backend]
        if files and not chosen:
            raise _unreadable(files[0], request.backend)
        return chosen
    usable = [file for file in files if profile.mlx or file.backend != "mlx"]
    if files and not usable:
        raise without_mlx(f"{one_line(files[0].model)} is an MLX model, and MLX is not available.")
    if weighs_mlx(profile, request) and request.prefers is None:
        return usable
    first = request.prefers or "llama.cpp"
    return [file for file in usable if file.backend == first] or usable


def without_mlx(what: str) -> BackendMissing:
    """Return the error to raise if MLX is missing."""
    hint = "MLX is for Macs with Apple Silicon (and, slowly, Linux). Use a GGUF file of the model."
    wanted = _PACKAGES.get((sys.platform, platform.machine()))
    if wanted is not None and not frozen():
        hint = f"Install it, or use a GGUF file of the model:\n  {sys.executable} -m pip install {wanted}"
    return BackendMissing(f"{what} {missing() or 'It is not installed.'}", hint=hint)


def _unreadable(file: Variant, backend: Backend) -> BackendMissing:
    name = one_line(file.model)
    if backend == "llama.cpp":
        hint = "Omit --backend llama.cpp, or use a GGUF file of the model."
        return BackendMissing(f"{name} is an MLX model, which llama.cpp cannot load.", hint=hint)
    hint = "To run it with llama.cpp, omit --backend mlx"
    if file.entry is not None and file.entry.mlx:
        hint = f"To download an MLX version: edgechat pull {file.entry.name} --backend mlx"
    return BackendMissing(
        f"{name} is not an MLX model (a folder with safetensors), and this machine has no MLX version.",
        hint=hint,
    )


_YES = "yes"
"""The label that must come first if a model has several, as llama.cpp returns the first label's score."""


def check(name: str, header: ModelHeader, *, may_embed: bool) -> None:
    """Raise ModelFileError if a model cannot chat. may_embed: accept embedding and reranking models too."""
    if not header.makes_embeddings:
        return
    reranks = header.kind == "reranking"
    if not may_embed and reranks:
        raise ModelFileError(
            f"{name} is a reranking model and cannot chat.",
            hint="`edgechat serve` provides scores at /v1/rerank. To search documents with it, set "
            "`reranking_model` in settings.toml. To chat, choose a chat model; `edgechat run guide` always "
            "works.",
        )
    if reranks and not _has_head(header):
        # Without the head, llama.cpp would return an element of the hidden state as the score.
        raise ModelFileError(
            f"{name} is a reranking model without the classification head that makes its scores.",
            hint="It was converted by an old program; look for another file of the same model.",
        )
    if reranks and len(labels := _labels(header)) > 1 and labels[0].lower() != _YES:
        raise ModelFileError(
            f"{name} classifies text ({show(', '.join(labels))}) and cannot score documents.",
            hint="Choose a reranking model: `edgechat pull bge-reranker-v2-m3`.",
        )
    if not may_embed:
        raise ModelFileError(
            f"{name} is an embedding model and cannot chat.",
            hint="`edgechat serve` provides embeddings at /v1/embeddings. To chat, choose a chat model; "
            "`edgechat run guide` always works.",
        )


def _has_head(header: ModelHeader) -> bool:
    """Return whether the model has a layer that computes scores.

    A tensor cls.weight alone does not prove this: it can be the preceding layer, which is as wide as the
    model.
    """
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    head = shapes.get("cls.weight")
    return "cls.output.weight" in shapes or (head is not None and math.prod(head[1:]) == 1)


def _labels(header: ModelHeader) -> tuple[str, ...]:
    found = header.shape_value("classifier.output_labels")
    return tuple(map(str, found.values or ())) if isinstance(found, GgufArray) else ()
