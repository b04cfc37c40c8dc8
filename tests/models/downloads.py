"""Helpers for download tests: a file on the hub, and its local state."""

from __future__ import annotations

import os
import random

import pytest

from edgechat.models.choices import RemoteFile, RepoListing
from edgechat.models.hub.cache import HubStore
from edgechat.models.hub.download import FetchedFile, download
from edgechat.models.hub.listing import list_repo
from tests.hub import Hub

REPO, FILE = "owner/a-GGUF", "a-Q4_0.gguf"
SIZE = 3_000_000
DATA = random.Random(1).randbytes(SIZE)


class Seen:
    """An observer that remembers what it is told."""

    def __init__(self) -> None:
        self.here: list[int] = []
        self.hashed = 0
        self.said: list[str] = []
        self.names: set[str] = set()
        """Names of the files that it was told about."""

    def has(self, file: RemoteFile, n: int) -> None:
        self.names.add(file.name)
        self.here.append(n)

    def checked(self, file: RemoteFile, n: int) -> None:
        self.names.add(file.name)
        self.hashed = n

    def says(self, text: str) -> None:
        self.said.append(text)


def listed(hub: Hub, files: dict[str, bytes] | None = None) -> RepoListing:
    hub.add(REPO, {FILE: DATA} if files is None else files)
    return list_repo(REPO, None)


def fetch(listing: RepoListing, seen: Seen | None = None, revision: str = "main") -> list[FetchedFile]:
    return download(listing, listing.files, revision, seen or Seen())


def store(listing: RepoListing) -> tuple[HubStore, RemoteFile]:
    return HubStore(listing), listing.files[0]


def refused(kind: type[Exception], listing: RepoListing) -> Exception:
    with pytest.raises(kind) as caught:
        fetch(listing)
    assert type(caught.value) is kind
    at, file = store(listing)
    assert not os.path.lexists(at.path(file))
    assert not os.path.lexists(at.blob(file))
    return caught.value


def complete(listing: RepoListing, data: bytes = DATA) -> bool:
    at, file = store(listing)
    return at.path(file).read_bytes() == data and not at.partial(file).exists()


def forget(listing: RepoListing) -> None:
    at, file = store(listing)
    at.blob(file).unlink()
    at.path(file).unlink()


def keep(listing: RepoListing, data: bytes) -> None:
    """Leave the partial file of an earlier download."""
    at, file = store(listing)
    at.make_folders(file)
    at.mark_begun(file, "main")
    at.partial(file).write_bytes(data)
