"""The LoRA adapters that a sequence is computed with.

llama.cpp applies adapters to whole calls. So sequences share a call, and cells of the cache, only if their
sets of adapters are equal: by content and scale, whatever the files are called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from edgechat.models.adapters.use import checked_scale

_MARK_LENGTH = 4
_MARK = 1 << 31
"""A bit that neither tokens nor the ids of media have."""


FileVersion = tuple[int, ...]
"""What changes when a file is replaced."""


@dataclass(frozen=True, slots=True, order=True)
class ActiveAdapter:
    """An adapter with the scale that it is applied with."""

    digest: str
    """Of its file's content."""
    scale: float
    path: str = field(compare=False)
    """Of the GGUF file."""
    version: FileVersion = field(compare=False)
    """Of the file when it was hashed."""


AdapterSet = tuple[ActiveAdapter, ...]
"""In a fixed order, none twice; empty: the model as it is."""


def adapter_set(adapters: Iterable[ActiveAdapter]) -> AdapterSet:
    """Return the set of some adapters: scales of the same one add up, and those with scale 0 are left out.

    Raises NotAnAdapter where a sum is no valid scale.
    """
    by_digest: dict[str, ActiveAdapter] = {}
    for adapter in adapters:
        same = by_digest.get(adapter.digest)
        by_digest[adapter.digest] = replace(adapter, scale=adapter.scale + same.scale) if same else adapter
    return tuple(sorted(adapter for adapter in by_digest.values() if checked_scale(adapter.scale)))


def mark_of(adapters: AdapterSet) -> tuple[int, ...]:
    """Return numbers that no token has, to be put before tokens that were computed with a set; none for none.

    124 bits of a hash: lists of tokens that begin with different marks have no common prefix.
    """
    if not adapters:
        return ()
    key = repr([(adapter.digest, adapter.scale) for adapter in adapters]).encode()
    digest = hashlib.blake2b(key, digest_size=4 * _MARK_LENGTH).digest()
    return tuple(int.from_bytes(digest[at : at + 4], "little") | _MARK for at in range(0, len(digest), 4))
