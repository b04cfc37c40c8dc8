"""Messages on a pipe: four bytes of length (little endian), then that many bytes of MessagePack."""

from __future__ import annotations

import struct
from typing import BinaryIO

HEADER = struct.Struct("<I")
MAX_FRAME = 64 * 2**20


class BrokenFrame(Exception):
    """The other side announced more than MAX_FRAME bytes, or stopped inside a frame."""


def pack(payload: bytes) -> bytes:
    """Return `payload` as a frame; BrokenFrame if it is larger than a frame may be."""
    if len(payload) > MAX_FRAME:
        raise BrokenFrame(f"a message of {len(payload)} bytes is over the limit of {MAX_FRAME}")
    return HEADER.pack(len(payload)) + payload


def write(stream: BinaryIO, payload: bytes) -> None:
    """Write `payload` as a frame to a stream without a buffer, which may take it in parts."""
    data = pack(payload)
    while data:
        data = data[stream.write(data) :]


def length(header: bytes) -> int:
    """Return the length that a frame's first four bytes announce; BrokenFrame above the limit."""
    (size,) = HEADER.unpack(header)
    if size > MAX_FRAME:
        raise BrokenFrame(f"a message of {size} bytes is over the limit of {MAX_FRAME}")
    return int(size)


def read(stream: BinaryIO) -> bytes | None:
    """Return the next frame's payload, or None at a clean end of the stream."""
    header = stream.read(HEADER.size)
    if not header:
        return None
    if len(header) < HEADER.size:
        raise BrokenFrame("the stream ended inside a frame")
    size = length(header)
    payload = stream.read(size)
    if len(payload) < size:
        raise BrokenFrame("the stream ended inside a frame")
    return payload
