"""Language models in a repository or folder, recognized by their file names.

Recognizes quantizations, split models, and each model's projectors and drafting layers (MTP). Projectors are
named mmproj-MODEL-F16.gguf or MODEL-mmproj-F16.gguf, or just mmproj-F16.gguf in a repository with only one
model. They are in the same folder as the models, in a parent folder, or in a folder of their own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from edgechat.models.formats.header import MAX_PARTS, Format
from edgechat.models.formats.quants import canonical, type_of
from edgechat.models.local.files import CONFIG, MLX_WEIGHTS, TOKENIZER, needed_by_mlx


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a repository, as listed by the hub."""

    name: str
    """Path in the repository: 'BF16/model-00001-of-00002.gguf'."""
    size: int
    sha256: str | None = None
    """64 lowercase hexadecimal digits. None for a small file stored in git itself."""
    git_sha1: str | None = None
    """Git's hash of a file stored in git itself, as 40 hexadecimal digits."""

    @property
    def digest(self) -> str | None:
        """Hash that verifies the file and names its blob. None if the hub does not provide one."""
        return self.sha256 or self.git_sha1


@dataclass(frozen=True, slots=True)
class RepoListing:
    """The files in a repository at one commit."""

    hub: str
    """URL of the hub or mirror that provided the listing."""
    repo: str
    """'owner/name'."""
    commit: str
    """40 hexadecimal digits."""
    gated: bool
    """Whether its terms must be accepted before downloading."""
    licence: str | None
    """Licence stated in the repository: 'apache-2.0'."""
    files: tuple[RemoteFile, ...]
    listed: float
    """When the files were listed, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model in a repository, with a particular quantization."""

    name: str
    """Path without the extension and shard number. For an MLX model, its folder, or '' at the top level."""
    quant: str | None
    """Quantization in the name: 'Q4_K_M', 'UD-Q4_K_M', 'BF16', '4bit'. None if the name contains none."""
    files: tuple[RemoteFile, ...]
    """One file, or the shards of a split model in order. An MLX model has config.json, the weights, and
    any other files that it needs.
    """
    format: Format = "gguf"
    projectors: tuple[RemoteFile, ...] = ()
    """Projectors that encode images or audio for it, recognized by name, best first. Only one is used."""
    heads: tuple[RemoteFile, ...] = ()
    """Files with its drafting layers (MTP), recognized by name, best first. Only one is used."""

    @property
    def shown(self) -> str:
        """Label shown to users, which distinguishes it from other models in the repository."""
        return self.quant or self.name or "an MLX model whose name does not state its quantization"

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of all the model's files."""
        return tuple(file.name for file in self.files)

    @property
    def total_bytes(self) -> int:
        """Total size of all the model's files, in bytes."""
        return sum(file.size for file in self.files)


_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})", re.DOTALL | re.ASCII)

_SIZES = "XXS|XS|XXL|XL|NL|S|M|L"
_LABEL = re.compile(
    rf"""(?<![A-Za-z0-9])(?P<label>
        (?:UD-)?(?:
            Q[1-8]_[01](?:_(?:4_4|4_8|8_8))?
          | Q[1-8]_K(?:_(?:{_SIZES}))*
          | Q[1-8]_0_(?:L|XL)
          | IQ[1-4]_(?:{_SIZES})
          | TQ[12]_0 | (?:MX|NV)FP4(?:_MOE)? | BF16 | F(?:P)?(?:16|32)
        ))(?![A-Za-z0-9])""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)

_MLX_LABEL = re.compile(
    r"""(?<![A-Za-z0-9])(?:(?P<bits>[2-8])[-_]?bits?|q(?P<q>[2-8])|mxfp[48]|nvfp4|bf16|fp?16|fp?32)
        (?![A-Za-z0-9])""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)

# GGUF files that are neither language models nor projectors: importance matrices, drafts for a particular
# target, bare vocabularies. llama.cpp has a similar list (common/download.cpp).
_NO_MODEL = re.compile(
    r"""(?:mmproj|imatrix|draft-|ggml-vocab-).* | .*[-._]imatrix
      | (?:mtp|(?:.*[-._])?(?:eagle3|dflash|dspark))(?:[-._].*)?""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_HEAD_QUANTS = ("Q8_0", "Q4_0")
_MTP = re.compile(r"[-._]mtp(?![A-Za-z0-9])", re.IGNORECASE)
"""Matches the name of a model with its own drafting layers, or of a file that contains only such layers."""
_LARGER = 4
"""A file is treated as drafting layers only if its model is more than this many times as large."""
_PROJECTOR_QUANTS = ("Q8_0", "F16", "BF16", "F32")
"""Projector quantizations, best first, for a model of at most 8 bits. Q8_0 is half the size of F16 and loses
less than the model's own quantization does (llama.cpp makes the same choice). For a model with more bits,
Q8_0 comes third. F32 stores the same numbers in twice the space, and BF16 is slow without hardware support.
"""


def model_choices(
    files: Iterable[RemoteFile], repo: str = "", *, mixed: bool = False
) -> tuple[ModelChoice, ...]:
    """Return the language models among the files of a repository or folder: GGUF first, then MLX.

    repo: the repository's name, which may contain the quantization of an MLX model. mixed: whether the files
    come from many repositories. Incomplete split models are left out. Whether safetensors files hold a
    language model can only be determined from their headers.
    """
    listed = list(files)
    return (*_with_companions(_gguf_choices(listed), listed, mixed), *_mlx_choices(listed, repo))


def _with_companions(
    choices: Sequence[ModelChoice], files: Iterable[RemoteFile], mixed: bool
) -> Iterator[ModelChoice]:
    """Yield the models, each with its projectors and drafting layers."""
    models = list(_without_heads(choices))
    known = {choice.name for choice in models}
    stems = {stem: file for file in files if file.size > 0 and (stem := _stem(file.name))}
    projectors = {stem: file for stem, file in stems.items() if _is_projector(stem)}
    heads = {stem: file for stem, file in stems.items() if stem not in known and _is_head(stem)}
    projectors_by, heads_by = (_companions_of(known, found, mixed=mixed) for found in (projectors, heads))
    for choice in models:
        seeing = [(stem, projectors[stem]) for stem in projectors_by.get(choice.name, ())]
        seeing.sort(key=lambda pair: (_projector_rank(pair[0], choice.quant), pair[1].size, pair[0]))
        drafting = [(stem, heads[stem]) for stem in heads_by.get(choice.name, ())]
        drafting.sort(key=lambda pair: (_head_rank(pair[0]), pair[1].size, pair[0]))
        yield replace(
            choice,
            projectors=tuple(file for _, file in seeing),
            heads=tuple(file for _, file in drafting),
        )


def _head_rank(stem: str) -> int:
    """Rank a file with drafting layers by its name; 0 is best. Q8_0 comes first because it loses little."""
    label = quant_label(stem)
    return _HEAD_QUANTS.index(label) if label in _HEAD_QUANTS else len(_HEAD_QUANTS)


def _projector_rank(stem: str, quant: str | None) -> int:
    """Rank a projector by its name, for a model with the given quantization; 0 is best."""
    label, kind = quant_label(stem), type_of(quant)
    order = list(_PROJECTOR_QUANTS)
    if kind is not None and kind.name in order[1:]:
        order = [*order[1:3], order[0], order[3]]
    return order.index(label) if label in order else len(order)


def _gguf_choices(files: Iterable[RemoteFile]) -> tuple[ModelChoice, ...]:
    choices: list[ModelChoice] = []
    sets: dict[tuple[str, int], dict[int, RemoteFile]] = {}
    for file in files:
        stem = _stem(file.name)
        if stem is None or file.size <= 0:
            continue
        if is_projector(_base(stem)) or _NO_MODEL.fullmatch(_base(stem)):
            continue
        match = _PART.fullmatch(stem)
        if match is None:
            choices.append(ModelChoice(stem, quant_label(stem), (file,)))
        else:
            sets.setdefault((match["stem"], int(match["count"])), {})[int(match["number"])] = file
    for (stem, count), parts in sets.items():
        if _is_complete(parts, count):
            files_in_order = tuple(file for _, file in sorted(parts.items()))
            choices.append(ModelChoice(stem, quant_label(stem), files_in_order))
    return tuple(sorted(choices, key=lambda choice: choice.name))


def _without_heads(choices: Sequence[ModelChoice]) -> Iterator[ModelChoice]:
    """Yield the models, leaving out files that contain only drafting layers (MTP).

    Such files are much smaller than the model of the same name.
    """
    smallest: dict[str, int] = {}
    for choice in choices:
        if not _MTP.search(choice.name):
            name = _family(choice)
            smallest[name] = min(smallest.get(name, choice.total_bytes), choice.total_bytes)
    for choice in choices:
        is_alone = _LARGER * choice.total_bytes < smallest.get(_family(choice), 0)
        if not (is_alone and _MTP.search(choice.name)):
            yield choice


def _family(choice: ModelChoice) -> str:
    """Return the part of the name that is common to all quantizations of a model."""
    name = _MTP.sub("", without_label(_base(choice.name)))
    return name.strip("-._ ").casefold()


def quant_label(name: str) -> str | None:
    """Return the last quantization in a file's name, in uppercase, or None."""
    labels = [match["label"].upper() for match in _LABEL.finditer(PurePosixPath(name).name)]
    return canonical(labels[-1]) if labels else None


def without_label(name: str) -> str:
    """Return a file's name with any quantizations removed."""
    return _LABEL.sub("", name)


def mlx_label(name: str) -> str | None:
    """Return the quantization in the name of an MLX repository or folder, or None."""
    match = _MLX_LABEL.search(_base(name))
    if match is None:
        return None
    bits = match["bits"] or match["q"]
    return f"{bits}bit" if bits else canonical(match[0]).lower()


def _mlx_choices(files: Sequence[RemoteFile], repo: str) -> Iterator[ModelChoice]:
    """Yield a model for each folder that has a config, all the weights and a tokenizer."""
    folders: dict[str, dict[str, RemoteFile]] = {}
    for file in files:
        folder, _, name = file.name.rpartition("/")
        if needed_by_mlx(name):
            folders.setdefault(folder, {})[name] = file
    for folder, names in sorted(folders.items()):
        weights = sorted(name for name in names if MLX_WEIGHTS.fullmatch(name))
        if CONFIG not in names or TOKENIZER not in names or not _all_there(weights):
            continue
        rest = sorted(set(names) - set(weights) - {CONFIG})
        label = mlx_label(folder) or mlx_label(repo)
        yield ModelChoice(folder, label, tuple(names[name] for name in (CONFIG, *weights, *rest)), "mlx")


def _all_there(weights: Sequence[str]) -> bool:
    """Return whether there are weights and none of the shards are missing."""
    sets: dict[tuple[str, int], set[int]] = {}
    for name in weights:
        match = _PART.fullmatch(name.removesuffix(".safetensors"))
        if match is not None:
            sets.setdefault((match["stem"], int(match["count"])), set()).add(int(match["number"]))
    complete = all(_is_complete(numbers, count) for (_, count), numbers in sets.items())
    return 0 < len(weights) <= MAX_PARTS and complete


def _stem(name: str) -> str | None:
    """Return the name of a GGUF file without its extension, or None for any other file."""
    stem = name[: -len(".gguf")] if name.lower().endswith(".gguf") else ""
    return stem if _base(stem) else None


def _is_projector(stem: str) -> bool:
    """Return whether this is a projector in a single file. libmtmd cannot load split projectors."""
    return is_projector(_base(stem)) and not _PART.fullmatch(stem)


def _is_head(stem: str) -> bool:
    """Return whether a file that is not a model contains only drafting layers, judging by its name."""
    base = _base(stem)
    return _MTP.search(f"-{base}") is not None and not (is_projector(base) or _PART.fullmatch(stem))


def _is_complete(numbers: Collection[int], count: int) -> bool:
    """Return whether these are all the shard numbers from 1 to `count`."""
    return 0 < count <= MAX_PARTS and set(numbers) == set(range(1, count + 1))


_PROJECTOR = re.compile(r"(?:.*[-._])?mmproj(?:[-._].*)?", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"mmproj|(?<![^-._])mtp(?![^-._])", re.IGNORECASE)
_SEPARATORS = re.compile(r"[-._ ]+")
_NAMELESS = ("ggml-model", "model", "ggml", "gguf")
"""Generic names that conversion tools give to any model's files."""


def is_projector(stem: str) -> bool:
    """Return whether a file is a projector, judging by its name without folder and extension."""
    return _PROJECTOR.fullmatch(stem) is not None


def _companions_of(
    models: Collection[str], projectors: Collection[str], *, mixed: bool
) -> dict[str, list[str]]:
    """Return the best-matching projectors (or drafting layers) for each model, in no particular order.

    Models without any are left out. Names include folders but not extensions. mixed: whether the outermost
    folder holds models from many repositories. In that folder, a projector whose name does not match any
    model is ignored. In any other folder, such a projector belongs to the model if there is only one.
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
    """Return how well the names of a projector and a model match (higher is better), or None if they do not.

    alone: whether there is only one model. anything: whether that model accepts a projector with any name.
    """
    if projector and projector == model:
        return 3, 0
    if projector and model and (_contains(model, projector) or _contains(projector, model)):
        return 2, min(len(projector), len(model))
    if alone and not (projector and model):
        return 1, 0
    return (0, 0) if alone and anything else None


def _are_one(keys: Sequence[str]) -> bool:
    """Return whether these could all be names for the same model, some more detailed than others."""
    shortest = min(keys, key=len, default="")
    return all(key == shortest or not shortest or _contains(key, shortest) for key in keys)


def _contains(longer: str, shorter: str) -> bool:
    """Return whether the longer name starts or ends with the words of the shorter one."""
    return longer.startswith(shorter + "-") or longer.endswith("-" + shorter)


def _key(name: str) -> str:
    """Return the words in a name, joined by hyphens, or '' if the name is too generic to identify a model."""
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
