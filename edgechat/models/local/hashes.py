"""The hub's hashes: SHA-256 of files in Git LFS, git's own hash of small files.

Git's is the SHA-1 of "blob ", the size, a zero byte and the bytes. It tells damage as surely; that someone
could make two files with one such hash does not matter, as it is the hub's own word that is compared.
"""

from __future__ import annotations

import re
from typing import Protocol

_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}", re.ASCII)
_GIT = 40


class Hash(Protocol):
    """A hashlib hash object."""

    def update(self, data: bytes, /) -> None:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all of them."""
        ...


def is_digest(text: str) -> bool:
    """Return whether this is a hash: 64 or 40 hexadecimal digits in lower case."""
    return _DIGEST.fullmatch(text) is not None


def is_git_sha1(text: str) -> bool:
    """Return whether this is git's hash of a small file."""
    return is_digest(text) and len(text) == _GIT


def hash_for(digest: str, size: int) -> Hash:
    """Return a hasher of the kind of `digest`, for `size` bytes."""
    import hashlib  # 2 ms, which a list of models need not pay

    if len(digest) != _GIT:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
