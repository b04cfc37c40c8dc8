"""Headers of models on the hub, read from the first megabytes of their files and then cached.

The cache also stores listings. Invalid entries are ignored, and the least recently used ones are evicted
first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

from edgechat.base import paths
from edgechat.base.errors import FolderError, ModelFileError
from edgechat.base.text import one_line
from edgechat.models.choices import ModelChoice, RemoteFile, RepoListing
from edgechat.models.formats.gguf import FIRST_READ, NeedMoreBytes, one_model, parse_header, read_growing
from edgechat.models.formats.header import AGAIN, ModelHeader, unsound
from edgechat.models.formats.mlx import contents
from edgechat.models.formats.mlx.config import MAX_CONFIG
from edgechat.models.formats.mlx.contents import MAX_TABLES, Contents, TensorTable
from edgechat.models.formats.mlx.tensors import PREFIX, table_length
from edgechat.models.formats.mlx.vision import PROCESSORS
from edgechat.models.formats.skeleton import pack, unpack
from edgechat.models.hub.client import Client, ConnectionCut, RangedFile, ask_hub
from edgechat.models.hub.endpoint import Endpoint, nonsense, unreachable

T = TypeVar("T")

TIME_LIMIT = 120.0
"""Seconds allowed for reading a model's header, including all shards."""
LATER_READ = 1 << 18
"""Number of bytes in the first request for a later shard, which has no tokenizer."""
FIRST_TABLE = 1 << 17
"""Number of bytes in the first request for a safetensors file. This is enough for most tables."""
MAX_CUTS = 4
"""Number of lost connections tolerated per file."""


def read_remote_header(listing: RepoListing, choice: ModelChoice) -> ModelHeader:
    """Read the header of a model on the hub, merging the headers of all its shards.

    Requests the first 8 MiB (less for later shards), and doubles that as needed up to `gguf.MAX_HEADER`.
    Raises HubError, and ModelFileError for a file that is not a language model.
    """

    def parts(client: Client) -> Iterator[ModelHeader]:
        for i, file in enumerate(choice.files):
            start = RemoteStart(client, RangedFile(listing, file))
            name = PurePosixPath(file.name).name
            yield read_growing(start.first, file.size, name, start=LATER_READ if i else FIRST_READ)

    return _ask(listing, lambda client: one_model(parts(client)))


def read_remote_start(listing: RepoListing, file: RemoteFile) -> tuple[bytes, ModelHeader]:
    """Return the header of a GGUF file that is not a language model, both as bytes and parsed.

    Raises HubError, ModelFileError.
    """

    def work(client: Client) -> tuple[bytes, ModelHeader]:
        start = RemoteStart(client, RangedFile(listing, file))
        header = read_growing(start.first, file.size, PurePosixPath(file.name).name, start=LATER_READ)
        return bytes(start.data[: header.data_offset]), header

    return _ask(listing, work)


def read_remote_contents(
    listing: RepoListing, choice: ModelChoice, name: str
) -> tuple[Contents, ModelHeader]:
    """Read the config and the tensor tables of an MLX model on the hub, and build its header from them.

    name: the model's name, for use in messages. Raises HubError, and ModelFileError for an unusable model.
    """

    def work(client: Client) -> tuple[Contents, ModelHeader]:
        config, *others = choice.files
        if config.size > MAX_CONFIG:
            raise unsound(config.name, f"it has more than {MAX_CONFIG} bytes")
        config_data = bytes(RemoteStart(client, RangedFile(listing, config)).first(config.size))
        tables: list[TensorTable] = []
        for file in others:
            if file.name.endswith(".safetensors"):
                left = MAX_TABLES - sum(len(table.data) for table in tables)
                tables.append(_table(RemoteStart(client, RangedFile(listing, file)), file, left))
        sees = any(file.name.rpartition("/")[2] in PROCESSORS for file in others)
        contents = Contents(config_data, tuple(tables), sees=sees)
        return contents, contents.header(name)

    return _ask(listing, work)


def _ask(listing: RepoListing, work: Callable[[Client], T]) -> T:
    """Run `work` with a client for the hub.

    If a file is damaged, the hint to download it again is replaced, since that would not help.
    """
    try:
        return ask_hub(Endpoint(listing.hub), listing.repo, TIME_LIMIT, work)
    except ModelFileError as error:
        if error.hint != AGAIN:
            raise
        hint = "The file on the hub is damaged. Choose another file, or another repository."
        raise ModelFileError(error.message, hint=hint) from error


def _table(start: RemoteStart, file: RemoteFile, most: int) -> TensorTable:
    """Return the tensor table of a safetensors file. Raises ModelFileError if it exceeds `most` bytes."""
    name = PurePosixPath(file.name).name
    n = table_length(start.first(min(file.size, FIRST_TABLE)), file.size, name)
    if n > most:
        raise unsound(name, f"the tensor tables of the model take more than {MAX_TABLES} bytes")
    return TensorTable(name, file.size, bytes(start.first(PREFIX + n)[PREFIX:]))


@dataclass(slots=True)
class RemoteStart:
    """The first bytes of a file on the hub, fetched on demand and only once."""

    client: Client
    ranged: RangedFile
    data: bytearray = field(default_factory=bytearray)
    cuts: int = 0

    def first(self, n: int) -> bytearray:
        """Return the first n bytes. Raises HubError."""
        while len(self.data) < n:
            before = len(self.data)
            try:
                self._fetch(n)
            except ConnectionCut:
                self.cuts += 1
            else:
                # An empty response makes no progress, so it counts as a lost connection.
                self.cuts += len(self.data) == before
            if self.cuts > MAX_CUTS:
                raise unreachable(self.ranged.url, f"the connection was lost {self.cuts} times")
        return self.data[:n]

    def _fetch(self, n: int) -> None:
        """Fetch whichever of the first n bytes are missing. Raises HubError, ConnectionCut."""
        at = len(self.data)
        with self.client.get(self.ranged.url, self.ranged.headers(at, n)) as answer:
            if not self.ranged.is_unchanged(answer):
                raise self.ranged.changed()
            start, end = self.ranged.part(answer, at, n)
            del self.data[start:]
            end = min(end, n)
            for piece in answer.pieces:
                room = end - len(self.data)
                self.data += piece[:room]
                if len(piece) > room and answer.status == 206:
                    name = one_line(self.ranged.file.name)
                    raise nonsense(answer.url, f"sent more of {name} than was requested")
                if len(self.data) >= end and answer.status == 200:
                    return
        if len(self.data) < end:
            raise ConnectionCut("the response is shorter than announced")


MAX_HEADERS = 256
"""Maximum number of headers in the cache. Each takes a few kilobytes."""
MAX_LISTINGS = 64
MAX_BYTES = 8 << 20
"""Maximum size of a cache entry, in bytes."""


def cached_header(listing: RepoListing, choice: ModelChoice) -> ModelHeader | None:
    """Return a model's cached header, or None. It contains only what `store_header` stores."""
    data = _read("headers", _file_key(listing, choice.files))
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
    """Store a header's shape, and return the header as `cached_header` will return it.

    Raises ModelFileError.
    """
    data = pack(header)
    _write("headers", _file_key(listing, choice.files), data, MAX_HEADERS)
    return unpack(data, choice.name.rpartition("/")[2])


def store_contents(listing: RepoListing, choice: ModelChoice, read_contents: contents.Contents) -> None:
    """Store the contents of an MLX model, for use by `cached_header`."""
    _write("headers", _file_key(listing, choice.files), read_contents.pack(), MAX_HEADERS)


def cached_start(listing: RepoListing, file: RemoteFile) -> ModelHeader | None:
    """Return the cached header of a GGUF file that is not a language model, or None."""
    data = _read("headers", _file_key(listing, (file,)))
    try:
        name = file.name.rpartition("/")[2]
        return (
            parse_header(zlib.decompressobj().decompress(data, MAX_BYTES), file.size, name) if data else None
        )
    except (ModelFileError, NeedMoreBytes, zlib.error):
        return None


def store_start(listing: RepoListing, file: RemoteFile, data: bytes) -> None:
    """Store the bytes of a header, for use by `cached_start`."""
    if len(data) <= MAX_BYTES:
        _write("headers", _file_key(listing, (file,)), zlib.compress(data), MAX_HEADERS)


def cached_listing(hub: str, repo: str, revision: str | None) -> bytes | None:
    """Return the cached listing of a repository, or None."""
    return _read("listings", (hub, repo.lower(), revision or ""))


def store_listing(hub: str, repo: str, revision: str | None, data: bytes) -> None:
    """Store the listing of a repository."""
    _write("listings", (hub, repo.lower(), revision or ""), data, MAX_LISTINGS)


def mlx_name(listing: RepoListing, choice: ModelChoice) -> str:
    """Return the name of an MLX model on the hub, for use in messages."""
    return f"{listing.repo}/{choice.name}".rstrip("/")


def _file_key(listing: RepoListing, files: Iterable[RemoteFile]) -> tuple[str, ...]:
    """Return the cache key for a header. It includes the hub, since a mirror may have different files."""
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
    """Write an entry atomically, unless it is too large. Errors are ignored."""
    if len(data) > MAX_BYTES:
        return
    with contextlib.suppress(OSError, FolderError):
        path = _path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        paths.replace(path, data)
        paths.keep_newest(path.parent, most)
