"""What a worker and its user send each other over ssh: JSON objects, one a line.

The worker's first line is an Offer or a WorkerRefusal. It answers each Ping with a Pong, and a Transfer with
a Pong and as many bytes as were asked for. Anything else ends the connection.
"""

from __future__ import annotations

import msgspec

from edgechat.device.speed import DeviceSpeed

CPU = "CPU"
"""llama.cpp's name of the processor as a device."""
MOST_BYTES = 1 << 16
"""The longest line."""
MOST_TRANSFER = 64 << 20
"""Bytes of one transfer."""


class LentDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that llama.cpp's RPC server gives access to, in the order of its list."""

    name: str
    """There: 'CUDA0', 'CPU'."""
    description: str
    total: int
    """Bytes that are lent at most."""
    free: int
    speed: DeviceSpeed | None = None
    """None: not measured."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag="offer"):
    """What a worker lends."""

    edgechat: str
    llama_cpp: str
    """Version of llama-cpp-python."""
    ggml: str
    """'0.25.3 (0c1e57098)': the RPC protocol has no other version to rely on."""
    port: int
    """Of the RPC server, on that machine's loopback."""
    cpu: str
    """The name of its processor."""
    threads: int
    devices: tuple[LentDevice, ...]
    sandbox: str = ""
    """What the system confines the server with, as text; empty: nothing."""


class WorkerRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Why a worker lends nothing."""

    message: str
    hint: str = ""
    is_port: bool = False
    """Another port may do."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to a ping: that the server's process runs."""

    number: int
    free: tuple[int, ...] = ()
    """Bytes of each device."""
    n_bytes: int = 0
    """Bytes that follow this line."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """A heartbeat."""

    number: int


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    """Bytes to measure the link with."""

    number: int
    up: int = 0
    """Bytes that follow this line, to be thrown away."""
    down: int = 0
    """Bytes that are to follow the answer."""


FromWorker = Offer | WorkerRefusal | Pong
ToWorker = Ping | Transfer
