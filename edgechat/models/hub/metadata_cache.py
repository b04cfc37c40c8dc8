"""The cache of what the hub returned: listings of repositories and packed headers.

Invalid entries are ignored. The least recently used are removed first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import FolderError, ModelFileError
from edgechat.models.choices import ModelChoice, RemoteFile, RepoListing
from edgechat.models.formats.gguf import parse_header
from edgechat.models.formats.gguf_cursor import NeedMoreBytes
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.mlx import contents
from edgechat.models.formats.skeleton import pack, unpack

MAX_HEADERS = 256
"""Of some kilobytes each."""
MAX_LISTINGS = 64
MAX_BYTES = 8 << 20
"""Of an entry."""


def cached_header(listing: RepoListing, choice: ModelChoice) -> ModelHeader | None:
    """Return the cached header of a model, as far as `store_header` stores it, or None."""
    data = _read("headers", _header_key(listing, choice))
    if data is None:
        return None
    try:
        if choice.format == "mlx":
            return contents.unpack(data).header(mlx_name(listing, choice))
        header = unpack(data, choice.name.rpartition("/")[2])
    except ModelFileError:
        return None
    return header if header.file_size == choice.total_bytes else None


def store_header(listing: RepoListing, choice: ModelChoice, header: ModelHeader) -> ModelHeader:
    """Store a header's shape; return what `cached_header` will. Raises ModelFileError."""
    data = pack(header)
    _write("headers", _header_key(listing, choice), data, MAX_HEADERS)
    return unpack(data, choice.name.rpartition("/")[2])


def store_contents(listing: RepoListing, choice: ModelChoice, read_contents: contents.Contents) -> None:
    """Store the contents of an MLX model, for `cached_header`."""
    _write("headers", _header_key(listing, choice), read_contents.pack(), MAX_HEADERS)


def cached_start(listing: RepoListing, file: RemoteFile) -> ModelHeader | None:
    """Return the cached header of a file that is no language model, or None."""
    data = _read("headers", _file_key(listing, (file,)))
    try:
        name = file.name.rpartition("/")[2]
        return (
            parse_header(zlib.decompressobj().decompress(data, MAX_BYTES), file.size, name) if data else None
        )
    except (ModelFileError, NeedMoreBytes, zlib.error):
        return None


def store_start(listing: RepoListing, file: RemoteFile, data: bytes) -> None:
    """Store the bytes of such a header."""
    if len(data) <= MAX_BYTES:
        _write("headers", _file_key(listing, (file,)), zlib.compress(data), MAX_HEADERS)


def cached_listing(hub: str, repo: str, revision: str | None) -> bytes | None:
    """Return the cached listing of a repository, or None."""
    return _read("listings", (hub, repo.lower(), revision or ""))


def store_listing(hub: str, repo: str, revision: str | None, data: bytes) -> None:
    """Store the listing of a repository."""
    _write("listings", (hub, repo.lower(), revision or ""), data, MAX_LISTINGS)


def mlx_name(listing: RepoListing, choice: ModelChoice) -> str:
    """Return the name of an MLX model on the hub, for messages."""
    return f"{listing.repo}/{choice.name}".rstrip("/")


def _header_key(listing: RepoListing, choice: ModelChoice) -> tuple[str, ...]:
    return _file_key(listing, choice.files)


def _file_key(listing: RepoListing, files: Iterable[RemoteFile]) -> tuple[str, ...]:
    """Return what identifies a header, including the hub, as a mirror may have different files."""
    described = (f"{file.name} {file.size} {file.digest}" for file in files)
    return (listing.hub, listing.repo.lower(), listing.commit, *described)


def _path(kind: str, key: tuple[str, ...]) -> Path:
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()
    return paths.cache_dir() / "hub" / kind / digest[:40]


def _read(kind: str, key: tuple[str, ...]) -> bytes | None:
    try:
        path = _path(kind, key)
        data = paths.read_bytes(path, MAX_BYTES)
    except (OSError, FolderError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return data


def _write(kind: str, key: tuple[str, ...], data: bytes, most: int) -> None:
    """Write an entry atomically, unless it is too large to be read; errors are ignored."""
    if len(data) > MAX_BYTES:
        return
    with contextlib.suppress(OSError, FolderError):
        path = _path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        paths.replace(path, data)
        _prune(path.parent, most)


def _prune(folder: Path, most: int) -> None:
    used: list[tuple[float, str]] = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            used.append((entry.stat().st_mtime, entry.path))
    for _, path in sorted(used, reverse=True)[most:]:
        with contextlib.suppress(OSError):
            os.unlink(path)
