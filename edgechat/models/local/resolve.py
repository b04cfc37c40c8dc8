"""Name resolution: from names typed by users to model files on this machine, without network access."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import ModelFileError, ModelNotFound
from edgechat.base.text import one_line
from edgechat.models.adapters.reading import CONFIG as ADAPTER_CONFIG
from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.models.formats.mlx.config import folder_name
from edgechat.models.formats.quants import canonical
from edgechat.models.local.files import Skipped
from edgechat.models.local.inventory import Inventory, LocalModel, inventory
from edgechat.models.local.stores import found_at, is_model_folder, peft_folders

_LISTED = 6
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model on this machine that a name refers to."""

    path: Path
    name: str
    """The model's name in the catalogue, or else the file's name without its extension."""
    entry: CatalogueEntry | None = None


def resolve(name: str) -> ResolvedModel:
    """Return the model that `name` refers to: a catalogue name, a path, or any model on this machine.

    A catalogue name takes precedence over a file with the same name; './guide' is always a path. Raises
    ModelNotFound, and ModelFileError if `name` exists but cannot be a model.
    """
    entry = entry_of(name)
    if entry is not None:
        path = local_file(entry)
        if path is None:
            raise _not_downloaded(entry, name)
        return ResolvedModel(path, entry.name, entry)
    if not name.strip() or "\0" in name:
        raise _not_found(name)
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if os.path.isfile(path):
        path = _first_part(_text_path(path))
        return ResolvedModel(path, _printable(path.name.removesuffix(".gguf")))
    if is_model_folder(path):
        return ResolvedModel(_text_path(path), _printable(folder_name(path)))
    models_here = inventory()
    matches = models_here.find(name)
    if matches:
        model = matches[0]
        return ResolvedModel(model.path, model.entry.name if model.entry else model.name, model.entry)
    if os.path.isfile(path / ADAPTER_CONFIG) or name.strip().casefold() in _peft_names():
        raise ModelFileError(
            f"{_printable(name)} is a LoRA adapter, not a model.",
            hint=f"To apply it to its model: edgechat run MODEL --lora {_printable(name)}",
        )
    if os.path.isdir(path):
        raise _folder_error(name, path)
    if os.path.lexists(path):
        raise ModelFileError(f"{_printable(name)} is not a readable file.", hint="Use a .gguf file.")
    if os.path.isdir(path.parent) and not os.access(path.parent, os.X_OK):
        raise ModelFileError(
            f"Permission denied: the folder containing {_printable(name)}.",
            hint="To allow reading it: chmod u+rx FOLDER",
        )
    raise _not_found(name, models_here)


def local_models(name: str) -> list[LocalModel]:
    """Return the models on this machine that a name or path refers to, if any."""
    models_here = inventory()
    if "\0" in name or not name.strip():
        return []
    path = _first_part(Path(os.path.abspath(os.path.expanduser(name))))
    if entry_of(name) is None and (os.path.isfile(path) or is_model_folder(path)):
        return [model for model in models_here.models if model.path == path]
    return models_here.find(name)


def find_models(name: str) -> list[LocalModel]:
    """Return the models that a name or path refers to, including files outside the known locations.

    Raises ModelNotFound or ModelFileError if there are none.
    """
    models = local_models(name)
    if models:
        return models
    resolved = resolve(name)
    found = found_at(resolved.path)
    if found is None:
        raise _not_found(name)
    return [LocalModel(resolved.name, str(resolved.path), found, resolved.entry, found.quant)]


def local_file(entry: CatalogueEntry) -> Path | None:
    """Return the path of this model's file (or its folder, for an MLX model) on this machine, or None.

    If there are several quantizations, the recommended one is preferred, then the first one in local_files().
    """
    if entry.repo is None:
        shipped = paths.shipped(entry.file)
        return shipped if shipped.is_file() else None
    models_here = inventory()
    if entry.quant is None:
        return next((model.path for model in models_here.of(entry)), None)
    files = local_files(entry, models_here)
    return files.get(canonical(entry.quant)) or next(iter(files.values()), None)


def local_files(entry: CatalogueEntry, models_here: Inventory | None = None) -> dict[str, Path]:
    """Return this model's files on this machine, keyed by the quantization in their names ('Q4_K_M').

    GGUF files come before MLX folders ('4bit'). Within a format, our own folder comes first, then the hub's
    cache (starting with the main revision), then the folders of other tools. A split model is represented by
    its first shard. The result is empty for a model that has only one quantization.
    """
    files: dict[str, Path] = {}
    for model in sorted((models_here or inventory()).of(entry), key=lambda model: model.found.format):
        if model.quant is not None:
            files.setdefault(model.quant, model.path)
    return files


def entry_of(name: str) -> CatalogueEntry | None:
    """Return the catalogue entry with this name or alias, or None."""
    wanted = name.strip().lower()
    return next((entry for entry in catalogue() if wanted in entry.names), None)


def _printable(name: str) -> str:
    """Return a file's name for use in messages: one printable line, even if it is not valid Unicode."""
    return one_line(name.encode("utf-8", "replace").decode("utf-8"))


def _text_path(path: Path) -> Path:
    """Return `path` if it is valid Unicode, as llama.cpp and the worker's pipe require.

    Raises ModelFileError.
    """
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise ModelFileError(
            f"The path {_printable(str(path))} is not valid Unicode text.",
            hint="Rename the file or its folder.",
        ) from None
    return path


def _first_part(path: Path) -> Path:
    """Return the path of a split model's first shard, which llama.cpp expects."""
    return path.with_name(re.sub(r"-[0-9]{5}(-of-[0-9]{5}\.gguf)$", r"-00001\1", path.name))


def _not_downloaded(entry: CatalogueEntry, name: str) -> ModelNotFound:
    if entry.repo is None:
        return ModelNotFound(
            f"{entry.name} is part of edgechat, but {entry.file} is missing from this installation.",
            hint="Reinstall edgechat, or give the path of a GGUF file.",
        )
    hint, tag = f"To download it: edgechat pull {entry.name}", f"ollama/{name.strip().lower()}"
    if inventory().find(tag):
        hint += f". To use Ollama's model of this name: edgechat run {tag}"
    message = f"{entry.name} is in the catalogue, but not on this machine yet. {entry.description}"
    return ModelNotFound(message, hint=hint)


def _folder_error(name: str, path: Path) -> ModelNotFound:
    files = _ggufs(path)
    if not files:
        return ModelNotFound(
            f"{_printable(name)} is a folder that contains neither a .gguf file nor a complete MLX model.",
            hint="Use a .gguf file, or a folder with config.json, safetensors and tokenizer.json.",
        )
    more = f" and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
    return ModelNotFound(
        f"{_printable(name)} is a folder, not a model. It contains "
        f"{', '.join(map(_printable, files[:_LISTED]))}{more}.",
        hint=f"Give the path of the file: {_printable(os.path.join(name, files[0]))}",
    )


def _not_found(name: str, models_here: Inventory | None = None) -> ModelNotFound:
    folder, base = os.path.split(name)
    suggestions = {known: known for entry in catalogue() for known in entry.names}
    if "\0" not in folder:
        # Compare names without the extension, which would make all files look alike.
        files = _ggufs(Path(os.path.expanduser(folder)))
        suggestions |= {file.removesuffix(".gguf").lower(): os.path.join(folder, file) for file in files}
    near = [suggestions[match] for match in difflib.get_close_matches(_stem(base), suggestions, n=3)]
    names = {model.name.lower(): model.name for model in models_here.models} if models_here else {}
    names |= _peft_names()
    near = [*(names[match] for match in difflib.get_close_matches(_stem(name), names, n=2)), *near]
    what = f"There is no file {_printable(name)!r}"
    message = f"{what}, and no model with that name in the catalogue or on this machine."
    if near:
        likely = list(dict.fromkeys(near))[:3]
        return ModelNotFound(message, hint=f"Did you mean {' or '.join(map(_printable, likely))}?")
    return ModelNotFound(
        message, hint="Use the path of a model, or a name shown by `edgechat list` or `edgechat plan`."
    )


def _peft_names() -> dict[str, str]:
    """Return the names of adapters saved by PEFT, keyed by the names in lowercase."""
    return {found.label.casefold(): found.label for found in peft_folders(Skipped())}


def _stem(name: str) -> str:
    return name[:_LONGEST].removesuffix(".gguf").lower()


def _ggufs(folder: Path) -> list[str]:
    try:
        return sorted(file for file in os.listdir(folder) if file.endswith(".gguf"))
    except OSError:
        return []
