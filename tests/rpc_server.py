"""A llama.cpp RPC server in its own process: a GPU-like device on any machine.

    with RpcServer(memory=64 * MIB) as server:
        LoadParams(..., rpc=(server.address,), devices=("RPC0",), split=(3,))

llama.cpp's own CPU device reports all of RAM as free and grants every allocation. This server's device has
`memory` bytes, reports how many are left, and refuses to go beyond them, as a GPU does.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]


def skip_without_rpc() -> None:
    """Skip the test if llama.cpp was built without RPC; `make` builds it in."""
    import llama_cpp.llama_cpp as lib

    if not lib.llama_supports_rpc():
        pytest.skip("llama.cpp was built without RPC")


class RpcServer:
    """A server on loopback that ends with the test, or with the process that started it."""

    def __init__(self, memory: int, *, threads: int = 1) -> None:
        skip_without_rpc()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self.memory = memory
        command = [sys.executable, "-P", "-m", "tests.rpc_server", self.address, str(memory), str(threads)]
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        handle, name = tempfile.mkstemp(prefix="rpc-server-")
        self._log = Path(name)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=handle, env=os.environ | {"PYTHONPATH": path}
        )
        os.close(handle)
        self._wait(port)

    @property
    def allocations(self) -> list[int]:
        """The size in bytes of each buffer requested, in order; negative if refused."""
        signs = {"given": 1, "refused": -1}
        lines = (line.split() for line in self._log.read_text().splitlines())
        return [signs[line[0]] * int(line[1]) for line in lines if line and line[0] in signs]

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    return
            except ConnectionRefusedError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server, as the OOM killer would."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> RpcServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._log.unlink()


class _Device(ctypes.Structure):
    """The start of struct ggml_backend_device: its functions."""

    _fields_ = (("name", ctypes.c_void_p), ("description", ctypes.c_void_p), ("memory", ctypes.c_void_p))


class _BufferType(ctypes.Structure):
    """The start of struct ggml_backend_buffer_type."""

    _fields_ = (("name", ctypes.c_void_p), ("allocate", ctypes.c_void_p))


class _Buffer(ctypes.Structure):
    """The start of struct ggml_backend_buffer."""

    _fields_ = (("free", ctypes.c_void_p),)


_SIZE = ctypes.POINTER(ctypes.c_size_t)
_Memory = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _SIZE, _SIZE)
_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Limit:
    """Limits the memory of ggml's CPU device, by wrapping its functions."""

    def __init__(self, device: int, buffer_type: int, memory: int) -> None:
        self._total = memory
        self._sizes: dict[int, int] = {}
        kind = _BufferType.from_address(buffer_type)
        self._allocate_as_ever = _Allocate(kind.allocate)
        self._free_as_ever: Any = None
        self._kept = (_Memory(self._memory), _Allocate(self._allocate), _Free(self._free))
        _Device.from_address(device).memory = _address(self._kept[0])
        kind.allocate = _address(self._kept[1])

    def _memory(self, _device: int, free: Any, total: Any) -> None:
        free[0], total[0] = self._total - sum(self._sizes.values()), self._total

    def _allocate(self, buffer_type: int, size: int) -> int | None:
        if sum(self._sizes.values()) + size > self._total:
            print("refused", size, flush=True)
            return None
        pointer: int = self._allocate_as_ever(buffer_type, size)
        buffer = _Buffer.from_address(pointer)
        self._free_as_ever = self._free_as_ever or _Free(buffer.free)
        buffer.free = _address(self._kept[2])
        self._sizes[pointer] = size
        print("given", size, flush=True)
        return pointer

    def _free(self, pointer: int) -> None:
        del self._sizes[pointer]
        self._free_as_ever(pointer)


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main(address: str, memory: int, threads: int) -> None:
    """Serve until the parent process ends."""
    from edgechat.native import ggml

    threading.Thread(target=_end_with_parent, daemon=True).start()
    (device,) = [one for one in ggml.devices() if ggml.device_name(one) == "CPU"]
    limit = _Limit(device, ggml.call("ggml_backend_cpu_buffer_type", ctypes.c_void_p), memory)
    backend = ggml.call("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p(b"RPC"))
    start = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p
    )(
        ggml.call(
            "ggml_backend_reg_get_proc_address",
            ctypes.c_void_p,
            ctypes.c_void_p(backend),
            ctypes.c_char_p(b"ggml_backend_rpc_start_server"),
        )
    )
    start(address.encode(), None, threads, 1, ctypes.addressof((ctypes.c_void_p * 1)(device)))
    raise SystemExit(f"the server ended: {limit}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
