"""Model files: listing them without opening them, and hashing them as the hub does.

Folders are untrusted: names are checked, the depth and the number of files are limited, symlinked folders are
not followed, and unreadable folders are skipped and recorded. The hub provides the SHA-256 hash for files in
Git LFS, and git's own hash for small files: the SHA-1 of "blob ", the size, a zero byte and the content.
SHA-1 is vulnerable to forgery, but here it only confirms what the hub says.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgechat.models.hub.names import safe_path

MAX_FILES = 4096
"""Maximum number of files found in one location."""
MAX_FOLDERS = 4096

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
"""Files that every MLX model has."""
MLX_WEIGHTS = re.compile(r"model[A-Za-z0-9._-]*\.safetensors", re.ASCII)
"""Names that mlx-lm accepts for weight files."""
_MLX_FILES = {
    CONFIG,
    TOKENIZER,
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
}


@dataclass(frozen=True, slots=True)
class ModelPartFile:
    """One of the files that make up a model."""

    path: Path
    size: int
    changed: int
    """Modification time in nanoseconds since 1970."""
    digest: str | None = None
    """The file's hash, if the tool that stored the file recorded it."""


@dataclass(slots=True)
class Skipped:
    """Folders and files that could not be read, with the reasons."""

    found: dict[Path, str] = field(default_factory=dict)

    def note(self, error: OSError, path: Path) -> None:
        """Record the error for this path, unless the path does not exist."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            self.found[path] = error.strerror or str(error)


def names(root: Path, depth: int, skipped: Skipped, until: float = math.inf) -> list[str]:
    """Return the relative paths (with '/') of model files up to `depth` levels below a folder.

    until: the value of `time.monotonic` at which to stop searching and return the files found so far.
    """
    files: list[str] = []
    ahead = [""]
    for n_folders, folder in enumerate(ahead):
        if n_folders >= MAX_FOLDERS or len(files) >= MAX_FILES or time.monotonic() >= until:
            break
        folders, names_here = _scan_folder(root / folder, skipped, until)
        prefix = f"{folder}/" if folder else ""
        files += [prefix + name for name in names_here if safe_path(prefix + name)]
        if prefix.count("/") + 1 < depth:
            ahead += [prefix + name for name in folders if safe_path(prefix + name)]
    return sorted(files)[:MAX_FILES]


def needed_by_mlx(name: str) -> bool:
    """Return whether an MLX model may need a file with this name. Code files are never needed."""
    return name in _MLX_FILES or MLX_WEIGHTS.fullmatch(name) is not None


def _scan_folder(folder: Path, skipped: Skipped, until: float) -> tuple[list[str], list[str]]:
    """Return a folder's subfolders and model files, leaving out hidden ones."""
    folders: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() >= until:
                    break
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.name.lower().endswith(".gguf") or needed_by_mlx(entry.name):
                    names.append(entry.name)
    except OSError as error:
        skipped.note(error, folder)
    return sorted(folders), names


def list_names(folder: Path, skipped: Skipped) -> list[str]:
    """Return the sorted names of everything in a folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        skipped.note(error, folder)
        return []


def file_at(path: Path, digest: str | None = None) -> ModelPartFile | None:
    """Return the regular file at a path, or None if there is none."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    return ModelPartFile(path, info.st_size, info.st_mtime_ns, digest)


_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}", re.ASCII)
_GIT = 40


class Hash(Protocol):
    """A hashlib hash object."""

    def update(self, data: bytes, /) -> None:
        """Add more bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes in hexadecimal."""
        ...


def is_digest(text: str) -> bool:
    """Return whether this is a hash: 64 or 40 lowercase hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def is_git_sha1(text: str) -> bool:
    """Return whether this is git's own hash, which the hub provides for small files."""
    return is_digest(text) and len(text) == _GIT


def hash_for(digest: str, size: int) -> Hash:
    """Return a hasher that computes the same kind of hash as `digest`, for a file of `size` bytes."""
    import hashlib  # takes 2 ms, and listing models does not need it

    if len(digest) != _GIT:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
