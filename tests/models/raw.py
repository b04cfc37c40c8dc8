"""Handmade GGUF headers, correct or faulty in any way a test wants."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return u64(len(raw)) + raw


def entry(key: str | bytes, value: object) -> bytes:
    """Return a metadata entry. value: str, bool, int (uint32), float, or bytes with a type and raw value."""
    if isinstance(value, bytes):
        return text(key) + value
    if isinstance(value, str):
        return text(key) + u32(8) + text(value)
    if isinstance(value, bool):
        return text(key) + u32(7) + bytes([value])
    if isinstance(value, int):
        return text(key) + u32(4) + u32(value)
    return text(key) + u32(6) + struct.pack("<f", value)


def strings(values: Sequence[str]) -> bytes:
    """Return an array of strings as the value of an entry."""
    return u32(9) + u32(8) + u64(len(values)) + b"".join(map(text, values))


def tensor(name: str | bytes, shape: Sequence[int] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


ARCHITECTURE = entry("general.architecture", "llama")


def gguf(
    entries: Sequence[bytes] = (ARCHITECTURE,),
    tensors: Sequence[bytes] = (),
    *,
    data: int | bytes = 0,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_entries: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a complete file; `data` is the weights section, or its length in zeros."""
    head = magic + u32(version)
    head += u64(len(tensors) if n_tensors is None else n_tensors)
    head += u64(len(entries) if n_entries is None else n_entries)
    head += b"".join(entries) + b"".join(tensors)
    if tensors:
        head += bytes(-len(head) % alignment)
    return head + (bytes(data) if isinstance(data, int) else data)
