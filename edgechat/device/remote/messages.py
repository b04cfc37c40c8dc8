"""Protocol between a worker and its user over ssh: one JSON object per line.

The worker's first line is an Offer or a WorkerRefusal. It answers a Ping with a Pong, and a Transfer with a
Pong followed by the requested bytes. Anything else ends the connection.
"""

from __future__ import annotations

import msgspec

from edgechat.device.speed import DeviceSpeed

CPU = "CPU"
"""llama.cpp's name of the processor as a device."""
MOST_BYTES = 1 << 16
"""Bytes of the longest line."""
MOST_TRANSFER = 64 << 20
"""Most bytes of one transfer."""


class LentDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the worker's RPC server, in the order of the server's list."""

    name: str
    """llama.cpp's name there: 'CUDA0', 'CPU'."""
    description: str
    total: int
    """Most bytes that are lent."""
    free: int
    speed: DeviceSpeed | None = None
    """None if not measured."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag="offer"):
    """The devices that a worker lends."""

    edgechat: str
    llama_cpp: str
    """Version of llama-cpp-python."""
    ggml: str
    """'0.25.3 (0c1e57098)': the only reliable version of the RPC protocol."""
    port: int
    """Port of the RPC server, on that machine's loopback."""
    cpu: str
    """Name of the processor."""
    threads: int
    devices: tuple[LentDevice, ...]
    sandbox: str = ""
    """Means of confining the server, as text; empty for none."""


class WorkerRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Reason why a worker lends nothing."""

    message: str
    hint: str = ""
    is_port: bool = False
    """Whether another port may work."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Answer to a ping, which shows that the server's process is running."""

    number: int
    free: tuple[int, ...] = ()
    """Free bytes of each device."""
    n_bytes: int = 0
    """Bytes that follow this line."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """A heartbeat."""

    number: int


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    """Bytes to measure the link."""

    number: int
    up: int = 0
    """Bytes after this line, to be discarded."""
    down: int = 0
    """Bytes to follow the answer."""


FromWorker = Offer | WorkerRefusal | Pong
ToWorker = Ping | Transfer
