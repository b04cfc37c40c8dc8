"""Protocol between a worker and its user over ssh: one JSON object per line.

The worker's first line is an Offer or a WorkerRefusal. It answers a Ping with a Pong, and a Transfer with a
Pong followed by the requested bytes. Anything else ends the connection.
"""

from __future__ import annotations

import msgspec

from edgechat.device.speed import DeviceSpeed

CPU = "CPU"
"""llama.cpp's device name for the CPU."""
MOST_BYTES = 1 << 16
"""Maximum length of a line, in bytes."""
MOST_TRANSFER = 64 << 20
"""Maximum bytes per transfer."""


class LentDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the worker's RPC server. An offer lists devices in the server's order."""

    name: str
    """llama.cpp's name for the device on the worker: 'CUDA0', 'CPU'."""
    description: str
    total: int
    """Maximum number of bytes that the worker lends."""
    free: int
    speed: DeviceSpeed | None = None
    """Its speed, or None if that has not been measured."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag="offer"):
    """The devices that a worker lends."""

    edgechat: str
    llama_cpp: str
    """The version of llama-cpp-python."""
    ggml: str
    """ggml's version, such as '0.25.3 (0c1e57098)'. Nothing else identifies the RPC protocol reliably."""
    port: int
    """Port of the RPC server, on the worker's loopback interface."""
    cpu: str
    threads: int
    devices: tuple[LentDevice, ...]
    sandbox: str = ""
    """How the server is sandboxed, as text; empty if it is not."""


class WorkerRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Why a worker lends nothing."""

    message: str
    hint: str = ""
    is_port: bool = False
    """Whether the reason is the port, so that another one may work."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to a Ping or a Transfer. It shows that the server's process is running."""

    number: int
    free: tuple[int, ...] = ()
    """Free bytes on each device."""
    n_bytes: int = 0
    """How many bytes follow this line."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """A heartbeat."""

    number: int


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    """A transfer that measures the speed of the link."""

    number: int
    up: int = 0
    """How many bytes follow this line; the worker discards them."""
    down: int = 0
    """How many bytes follow the answer."""


FromWorker = Offer | WorkerRefusal | Pong
ToWorker = Ping | Transfer
