"""Messages on a pipe: a four-byte length (little-endian), then that many bytes of MessagePack."""

from __future__ import annotations

import struct
from typing import BinaryIO

HEADER = struct.Struct("<I")
MAX_FRAME = 64 * 2**20


class BrokenFrame(Exception):
    """The other side announced more than MAX_FRAME bytes, or stopped in the middle of a frame."""


def pack(payload: bytes) -> bytes:
    """Return `payload` as a frame. Raises BrokenFrame if it exceeds the limit."""
    return HEADER.pack(_limited(len(payload))) + payload


def write(stream: BinaryIO, payload: bytes) -> None:
    """Write `payload` as a frame to an unbuffered stream, which may accept only a part at a time."""
    data = pack(payload)
    while data:
        data = data[stream.write(data) :]


def length(header: bytes) -> int:
    """Return the payload length given in a frame's header. Raises BrokenFrame if it exceeds the limit."""
    return _limited(HEADER.unpack(header)[0])


def _limited(size: int) -> int:
    if size > MAX_FRAME:
        raise BrokenFrame(f"a message of {size} bytes is over the limit of {MAX_FRAME}")
    return size


def read(stream: BinaryIO) -> bytes | None:
    """Return the next frame's payload, or None if the stream ends between frames. Raises BrokenFrame."""
    header = stream.read(HEADER.size)
    if not header:
        return None
    if len(header) == HEADER.size:
        size = length(header)
        payload = stream.read(size)
        if len(payload) == size:
            return payload
    raise BrokenFrame("the stream ended inside a frame")
