"""llama.cpp's RPC server: gives one other program at a time the devices of this process.

The protocol has no authentication, and its messages are hardly checked: it listens on the loopback only, and
whoever starts it confines the process first (`edgechat.device.remote.sandbox`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from edgechat.base.errors import LoadFailed, ServerRefused


def serve(port: int, devices: Sequence[str], threads: int, cache: Path | None) -> None:
    """Serve on 127.0.0.1 until the process ends; returns where it cannot listen.

    devices: llama.cpp's names of them. cache: a folder for large tensors, which are then sent once.
    Raises ServerRefused, LoadFailed.
    """
    from edgechat.native import ggml

    ggml.start()
    known = {ggml.device_name(device): device for device in ggml.devices()}
    if missing := [name for name in devices if name not in known]:
        raise LoadFailed(f"llama.cpp has no device {', '.join(missing)} here; it has {', '.join(known)}.")
    registry = ggml.call("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p(b"RPC"))
    name = ctypes.c_char_p(b"ggml_backend_rpc_start_server")
    start = registry and ggml.call(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p(registry), name
    )
    if not start:
        raise ServerRefused("This llama.cpp was built without RPC.")
    handles = (ctypes.c_void_p * len(devices))(*(known[name] for name in devices))
    arguments = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
    ctypes.CFUNCTYPE(None, *arguments)(start)(
        f"127.0.0.1:{port}".encode(),
        None if cache is None else str(cache).encode(),
        threads,
        len(devices),
        ctypes.addressof(handles),
    )


def free_bytes(device: str) -> int:
    """Return the free memory of a device, as its driver says."""
    from edgechat.native import ggml

    (handle,) = (one for one in ggml.devices() if ggml.device_name(one) == device)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.call(
        "ggml_backend_dev_memory",
        None,
        ctypes.c_void_p(handle),
        ctypes.pointer(free),
        ctypes.pointer(total),
    )
    return free.value
