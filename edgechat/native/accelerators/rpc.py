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

    add = _add_server()
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
            places = (ctypes.pointer(ctypes.c_size_t()), ctypes.pointer(ctypes.c_size_t()))
            ggml.call("ggml_backend_dev_memory", None, ctypes.c_void_p(device), *places)


def _add_server() -> Any:
    """Return ggml_backend_rpc_add_server."""
    from edgechat.native import ggml

    backend = ggml.call("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p(b"RPC"))
    name = ctypes.c_char_p(b"ggml_backend_rpc_add_server")
    add = backend and ggml.call(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p(backend), name
    )
    if not add:
        raise ServerRefused(
            "This llama.cpp was built without RPC.",
            hint="Rebuild it: CMAKE_ARGS=-DGGML_RPC=ON pip install --force-reinstall --no-binary "
            "llama-cpp-python llama-cpp-python",
        )
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(add)


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
