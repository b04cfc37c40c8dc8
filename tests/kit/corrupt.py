"""Files that are not models, or only look like one: damaged and odd copies."""

from __future__ import annotations

from pathlib import Path

from tests.kit.build import Spec, write
from tests.kit.shapes import DENSE, metadata


def truncated(path: Path, out: Path, *, keep: int) -> Path:
    """Copy the first `keep` bytes; if negative, leave out that many at the end."""
    data = path.read_bytes()
    out.write_bytes(data[:keep])
    return out


def patched(path: Path, out: Path, *, at: int, data: bytes) -> Path:
    """Copy, with `data` written at offset `at`."""
    copy = bytearray(path.read_bytes())
    copy[at : at + len(data)] = data
    out.write_bytes(copy)
    return out


def flipped(path: Path, out: Path, *, at: int, mask: int = 0xFF) -> Path:
    """Copy, with the bits in `mask` flipped in the byte at offset `at`."""
    return patched(path, out, at=at, data=bytes([path.read_bytes()[at] ^ mask]))


def wrong_magic(path: Path, out: Path, magic: bytes = b"GGML") -> Path:
    """Copy, starting with the magic letters of another file type."""
    return patched(path, out, at=0, data=magic)


def sparse(path: Path, out: Path, *, size: int) -> Path:
    """Copy, grown to `size` bytes with a hole that takes no disk space."""
    out.write_bytes(path.read_bytes())
    with out.open("r+b") as file:
        file.truncate(size)
    return out


def unknown_architecture(out: Path, name: str = "nonesuch") -> Path:
    """Write a valid file with an architecture that llama.cpp does not know."""
    keys = {f"{name}.{key}": value for key, value in metadata(DENSE).items()}
    write(Spec(overrides={"general.architecture": name, **keys}), out)
    return out


def f64_tensor(out: Path, pattern: str = "blk.0.ffn_norm.weight") -> Path:
    """Write a model with a tensor whose type passes llama.cpp's loader and crashes its decode."""
    write(Spec(types={pattern: "F64"}), out)
    return out
