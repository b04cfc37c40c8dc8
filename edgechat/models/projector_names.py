"""Which projectors, and files of drafting layers (MTP), belong to which models, by name.

Projectors are called mmproj-MODEL-F16.gguf or MODEL-mmproj-F16.gguf, or without the model's name where a
repository has only one. They lie beside the models, in a folder above, or in one of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

_PROJECTOR = re.compile(r"(?:.*[-._])?mmproj(?:[-._].*)?", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"mmproj|(?<![^-._])mtp(?![^-._])", re.IGNORECASE)
_SEPARATORS = re.compile(r"[-._ ]+")
_NAMELESS = ("ggml-model", "model", "ggml", "gguf")
"""What converters call a file of any model."""


def is_projector(stem: str) -> bool:
    """Return whether a file of this name, without folder and ending, is a projector."""
    return _PROJECTOR.fullmatch(stem) is not None


def projectors_of(
    models: Collection[str],
    projectors: Collection[str],
    without_label: Callable[[str], str],
    *,
    mixed: bool,
) -> dict[str, list[str]]:
    """Return the projectors, or drafting layers, of each model that has any: the best matches, in any order.

    All names are without ending, with their folders. without_label: removes the quantization from a name.
    mixed: the outermost folder holds models of many origins, so there a projector of another name is another
    model's; elsewhere it is that of the only model.
    """
    keys = {model: _key(without_label(_base(model))) for model in models}
    folders = [_folder(model) for model in models]
    found: dict[str, list[str]] = {}
    best: dict[str, tuple[int, int, int]] = {}
    for projector in sorted(projectors):
        folder = _folder(projector)
        while folder and not any(_is_within(other, folder) for other in folders):
            folder = _folder(folder)
        beneath = [model for model in models if _is_within(_folder(model), folder)]
        key = _key(_WORD.sub("", without_label(_base(projector))))
        alone = _are_one([keys[model] for model in beneath])
        for model in beneath:
            likeness = _likeness(key, keys[model], alone=alone, anything=bool(folder) or not mixed)
            if likeness is None:
                continue
            rank = (folder.count("/") + bool(folder), *likeness)
            if rank > best.get(model, (-1, 0, 0)):
                best[model], found[model] = rank, []
            if rank == best[model]:
                found[model].append(projector)
    return found


def _likeness(projector: str, model: str, *, alone: bool, anything: bool) -> tuple[int, int] | None:
    """Return how well two names match, greater is better; None: not at all.

    alone: there is one model here. anything: whatever projector is here, it is that model's.
    """
    if projector and projector == model:
        return 3, 0
    if projector and model and (_contains(model, projector) or _contains(projector, model)):
        return 2, min(len(projector), len(model))
    if alone and not (projector and model):
        return 1, 0
    return (0, 0) if alone and anything else None


def _are_one(keys: Sequence[str]) -> bool:
    """Return whether these are names of one model, of which some may say more than others."""
    shortest = min(keys, key=len, default="")
    return all(key == shortest or not shortest or _contains(key, shortest) for key in keys)


def _contains(longer: str, shorter: str) -> bool:
    """Return whether a name begins or ends with the words of another one."""
    return longer.startswith(shorter + "-") or longer.endswith("-" + shorter)


def _key(name: str) -> str:
    """Return the words of a name; '' for one that names no model."""
    key = _SEPARATORS.sub("-", name).strip("-").casefold()
    for nameless in _NAMELESS:
        if key == nameless:
            return ""
        key = key.removesuffix("-" + nameless)
    return key


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _is_within(folder: str, other: str) -> bool:
    return not other or folder == other or folder.startswith(other + "/")
