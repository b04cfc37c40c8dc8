"""llama.cpp's RPC servers and client, on the loopback interface only: the protocol has no authentication.

Devices are called RPC0, RPC1, ... in the order in which a process adds its servers, so a process never
changes its list of servers. A server serves one program at a time; others wait in its queue without a
response. llama.cpp ends the process if a server is missing or stops, so servers are checked before every
load. A server barely validates the messages it receives, so its process is sandboxed first
(`edgechat.device.remote.lending`).
"""

from __future__ import annotations

import ctypes
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from edgechat.base.errors import ServerRefused
from edgechat.base.network import lenders

NAME = "RPC"
"""The backend's name, and the prefix of its devices' names."""
_PATIENCE = 3.0
"""Seconds to wait for a server. A free one answers at once, or after freeing its last client's memory."""

_added: list[str] = []
_held: Counter[str] = Counter()


def check(servers: Iterable[str]) -> tuple[str, ...]:
    """Return the servers' addresses. Raises ServerRefused if a server is not on this machine."""
    addresses: list[str] = []
    for server in servers:
        address = lenders.rpc_address(server)
        if address is None:
            raise ServerRefused(lenders.rpc_refusal(server), hint=lenders.RPC_HINT)
        addresses.append(address)
    return tuple(dict.fromkeys(addresses))


def register(servers: Sequence[str]) -> None:
    """Add the devices of these servers to llama.cpp, after checking that each server is free.

    Raises ServerRefused if a server is not free, or if this process already uses different servers.
    """
    wanted = list(check(servers))
    if not wanted:
        return
    from edgechat.native import ggml

    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_function(b"ggml_backend_rpc_add_server"))
    if wanted[: len(_added)] != _added[: len(wanted)]:
        raise ServerRefused(f"This process was started with other RPC servers: {', '.join(_added)}.")
    for server in wanted:
        if not _held[server]:
            _check_connection(server)
    for server in wanted[len(_added) :]:
        registry = add(server.encode())
        if not registry:
            raise ServerRefused(f"The llama.cpp server at {server} has no devices.")
        ggml.ask("ggml_backend_register", None, registry)
        _added.append(server)


def hold(servers: Sequence[str]) -> None:
    """Record that a model in this process occupies the servers until `release` is called."""
    _held.update(check(servers))


def release(servers: Sequence[str]) -> None:
    """Undo one `hold`."""
    _held.subtract(check(servers))


def wait(devices: Iterable[int]) -> None:
    """Wait for any RPC devices in the list to finish their work, ignoring other devices.

    ggml itself waits only until everything is sent, because computing sends no response. A server handles
    requests in order, so a response to any request means that it has finished.
    """
    from edgechat.native import ggml

    for device in devices:
        if ggml.device_name(device).startswith(NAME):
            ggml.device_memory(device)


def _function(name: bytes) -> Any:
    """Return the address of a function in the RPC backend. Raises ServerRefused if this build lacks it."""
    from edgechat.native import ggml

    registry = ggml.call("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p(NAME.encode()))
    address = ggml.registered(registry, name)
    if not address:
        raise ServerRefused(
            "This llama.cpp was built without RPC.",
            hint="Rebuild it: CMAKE_ARGS=-DGGML_RPC=ON pip install --force-reinstall --no-binary "
            "llama-cpp-python llama-cpp-python",
        )
    return address


def _check_connection(server: str) -> None:
    """Connect, send nothing and wait for the server to hang up, which shows that it is running and free."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PATIENCE) as connection:
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
    except TimeoutError as error:
        raise ServerRefused(
            f"The llama.cpp server at {server} is busy with another program, or does not respond.",
            hint="It serves one program at a time. Close the other program, or start a second server.",
        ) from error
    except ConnectionResetError:
        return  # a reset also means that it hung up
    except OSError as error:
        raise ServerRefused(
            f"No llama.cpp server answers at {server}: {error.strerror or error}.",
            hint=f"To start it: rpc-server --host {host} --port {port}",
        ) from error


def serve(port: int, devices: Sequence[str], threads: int, cache: Path | None) -> None:
    """Serve on 127.0.0.1 until the process ends; return if the port cannot be opened.

    devices: llama.cpp's device names. cache: the folder in which large tensors are cached, so that each is
    sent only once. Raises ServerRefused or LoadFailed.
    """
    from edgechat.native import ggml

    ggml.start()
    handles = (ctypes.c_void_p * len(devices))(*ggml.device_handles(devices))
    start = _function(b"ggml_backend_rpc_start_server")
    arguments = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CFUNCTYPE(None, *arguments)(start)(
        f"127.0.0.1:{port}".encode(),
        None if cache is None else str(cache).encode(),
        threads,
        len(devices),
        ctypes.addressof(handles),
    )
