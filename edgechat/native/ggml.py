"""The functions of ggml that llama_cpp does not bind, found through llama.cpp's own library.

Devices, registries and buffer types are ggml's own pointers, as int.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib

CPU = "CPU"
_CPU, _ACCELERATED_CPU = 0, 3  # of ggml_backend_dev_type


def call(name: str, result: Any, *args: Any) -> Any:
    """Call a function of ggml; the arguments are ctypes values. AttributeError where there is none."""
    function = getattr(lib._lib, name)
    function.restype = result
    function.argtypes = [type(arg) for arg in args]
    return function(*args)


def ask(name: str, result: Any, pointer: int) -> Any:
    """Call a function whose one argument is a pointer."""
    return call(name, result, ctypes.c_void_p(pointer))


def text(raw: bytes | None) -> str:
    """Return what C calls a string; '' for NULL."""
    return raw.decode("utf-8", "replace").strip() if raw else ""


def registries() -> list[int]:
    """Return the backends that are built in, and each RPC server that was added."""
    count = call("ggml_backend_reg_count", ctypes.c_size_t)
    return [call("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t(index)) for index in range(count)]


def devices() -> list[int]:
    """Return everything that ggml can compute on."""
    count = call("ggml_backend_dev_count", ctypes.c_size_t)
    return [call("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(index)) for index in range(count)]


def registry_name(registry: int) -> str:
    """Return 'CPU', 'CUDA', 'RPC', ..."""
    return text(ask("ggml_backend_reg_name", ctypes.c_char_p, registry))


def device_name(device: int) -> str:
    """Return 'CPU', 'CUDA0', 'RPC1', ..."""
    return text(ask("ggml_backend_dev_name", ctypes.c_char_p, device))


def is_processor(device: int) -> bool:
    """Say whether a device is the CPU or what helps it (BLAS): it has no memory of its own."""
    return ask("ggml_backend_dev_type", ctypes.c_int, device) in (_CPU, _ACCELERATED_CPU)


def buffer_type_name(buffer_type: int) -> str:
    """Return 'CPU', 'CPU_REPACK', 'CUDA0', 'CUDA_Host', ..."""
    return text(ask("ggml_backend_buft_name", ctypes.c_char_p, buffer_type))


def holder(buffer_type: int) -> str:
    """Return the device whose memory such a buffer takes: 'CPU' also for what a GPU's driver pins in RAM."""
    device = ask("ggml_backend_buft_get_device", ctypes.c_void_p, buffer_type)
    if not device or is_processor(device):
        return CPU
    pinned = ask("ggml_backend_dev_host_buffer_type", ctypes.c_void_p, device)
    return CPU if buffer_type == pinned else device_name(device)


def buffer_types() -> dict[str, str]:
    """Return the devices that are not the processor by name, each with the name of its buffers."""
    return {
        device_name(device): buffer_type_name(ask("ggml_backend_dev_buffer_type", ctypes.c_void_p, device))
        for device in devices()
        if not is_processor(device)
    }
