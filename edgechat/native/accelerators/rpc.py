"""Devices of llama.cpp's RPC servers, on this machine only: the protocol has no authentication.

Devices are called RPC0, RPC1, ... in the order in which a process adds its servers, so each process has one
list of servers. A server serves one program at a time; others wait in its queue without a response. llama.cpp
ends the process if a server is not running, or stops: hence the check before every load.
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
"""With which names of devices begin."""
_PATIENCE = 3.0
"""Seconds. A server that is free answers at once, or as soon as it has freed what its last client took."""

_added: list[str] = []
_held: Counter[str] = Counter()


def check(servers: Iterable[str]) -> tuple[str, ...]:
    """Return the servers' addresses. ServerRefused if one is not on this machine."""
    addresses: list[str] = []
    for server in servers:
        address = lenders.rpc_address(server)
        if address is None:
            raise ServerRefused(lenders.rpc_refusal(server), hint=lenders.RPC_HINT)
        addresses.append(address)
    return tuple(dict.fromkeys(addresses))


def register(servers: Sequence[str]) -> None:
    """Add the devices of these servers to llama.cpp, after checking that each is free to answer.

    ServerRefused if one is not, or if this process has other servers already.
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
    """Note that a model of this process uses the servers, which serve no one else until `release`."""
    _held.update(check(servers))


def release(servers: Sequence[str]) -> None:
    """Undo one `hold`."""
    _held.subtract(check(servers))


def wait(devices: Iterable[int]) -> None:
    """Wait until RPC devices have computed all that they were sent; others are passed over.

    ggml waits only until all is sent, as computing has no response. Servers answer in order, whatever is
    asked.
    """
    from edgechat.native import ggml

    for device in devices:
        if ggml.device_name(device).startswith(NAME):
            ggml.device_memory(device)


def _function(name: bytes) -> Any:
    """Return the address of a function of the RPC backend. Raises ServerRefused."""
    from edgechat.native import ggml

    registry = ggml.call("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p(b"RPC"))
    address = ggml.registered(registry, name)
    if not address:
        raise ServerRefused(
            "This llama.cpp was built without RPC.",
            hint="Rebuild it: CMAKE_ARGS=-DGGML_RPC=ON pip install --force-reinstall --no-binary "
            "llama-cpp-python llama-cpp-python",
        )
    return address


def _check_connection(server: str) -> None:
    """Connect, send nothing and wait until the server hangs up: it runs and serves no other program."""
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
        return  # another way to hang up
    except OSError as error:
        raise ServerRefused(
            f"No llama.cpp server answers at {server}: {error.strerror or error}.",
            hint=f"To start it: rpc-server --host {host} --port {port}",
        ) from error


def serve(port: int, devices: Sequence[str], threads: int, cache: Path | None) -> None:
    """Serve on 127.0.0.1 until the process ends; returns where it cannot listen.

    devices: llama.cpp's names of them. cache: a folder for large tensors, which are then sent once.
    Raises ServerRefused, LoadFailed.
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
