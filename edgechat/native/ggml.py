"""ggml functions that llama_cpp does not bind, called through llama.cpp's library.

Devices, registries and buffer types are ggml's pointers, represented as int.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from edgechat.base.errors import LoadFailed
from edgechat.native import amx

CPU = "CPU"
_CPU, _ACCELERATED_CPU = 0, 3  # values of ggml_backend_dev_type
library: ctypes.CDLL = lib._lib
"""llama.cpp's shared library, which also exports ggml; llama_cpp has no public name for it."""
_MODULES = {"cuda": "CUDA", "hip": "ROCm", "metal": "MTL", "sycl": "SYCL", "vulkan": "Vulkan"}


def call(name: str, result: Any, *args: Any) -> Any:
    """Call a function with ctypes values. Raises AttributeError if this build does not export it."""
    function = getattr(library, name)
    function.restype = result
    function.argtypes = [type(arg) for arg in args]
    return function(*args)


def ask(name: str, result: Any, pointer: int) -> Any:
    """Call a function whose only argument is a pointer."""
    return call(name, result, ctypes.c_void_p(pointer))


def exported(*names: str) -> Any:
    """Return the first of these functions that this build exports, or None."""
    return next((found for name in names if (found := getattr(library, name, None))), None)


def registered(registry: Any, name: bytes) -> Any:
    """Return the address of a backend's function by name, or None if there is no such function."""
    handle, function = ctypes.c_void_p(registry), ctypes.c_char_p(name)
    return registry and call("ggml_backend_reg_get_proc_address", ctypes.c_void_p, handle, function)


def text(raw: bytes | None) -> str:
    """Decode a C string; NULL becomes ''."""
    return raw.decode("utf-8", "replace").strip() if raw else ""


def start() -> None:
    """Prepare llama.cpp for computing; may be called repeatedly. Raises LoadFailed if no backend works."""
    load_backends()
    _lay_out()


def load_backends() -> None:
    """Load the backends. Raises LoadFailed if none is usable.

    In a portable build (GGML_BACKEND_DL), the backends are modules in its folder, with one CPU module per
    processor generation. ggml loads the best module of each kind, but only on request.
    """
    lib.llama_backend_init()
    if not _cpu_device():
        folder = _folder()
        call("ggml_backend_load_all_from_path", None, ctypes.c_char_p(os.fsencode(folder)))
        if not _cpu_device():
            raise LoadFailed(
                f"llama.cpp has no usable backend: none for this CPU could be loaded from {folder}.",
                hint="Files are missing there or were changed. Reinstall edgechat.",
            )


def _cpu_device() -> Any:
    """Return the CPU device, or None if there is no CPU backend."""
    return call("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int(_CPU))


@cache
def _lay_out() -> None:
    """Fix the layout of weights for the rest of the process. Must be called before any sandbox starts."""
    with contextlib.nullcontext() if amx.computes_right(_folder()) else amx.refused():
        weight_layouts()


def weight_layouts() -> list[int]:
    """Return the buffer types into which the CPU may repack weights. The first call fixes them for good."""
    device = ctypes.c_void_p(_cpu_device())
    registry = call("ggml_backend_dev_backend_reg", ctypes.c_void_p, device)
    choose = registered(registry, b"ggml_backend_dev_get_extra_bufts")
    if not choose:
        return []
    chosen = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(choose)(device)
    return list(itertools.takewhile(bool, (chosen[index] for index in itertools.count()))) if chosen else []


def cpu_buffers() -> int:
    """Return the CPU's plain buffer type, in which weights keep the layout they have in the file."""
    return int(ask("ggml_backend_dev_buffer_type", ctypes.c_void_p, _cpu_device()))


def start_cpu() -> int:
    """Return a new backend that computes on the CPU. The caller must free it."""
    nothing = ctypes.c_char_p(None)
    return int(call("ggml_backend_dev_init", ctypes.c_void_p, ctypes.c_void_p(_cpu_device()), nothing))


def _folder() -> Path:
    """Return the folder that contains llama.cpp's library and modules."""
    return Path(library._name).parent


def modules() -> list[str]:
    """Return the registry names of the GPU backends in llama.cpp's folder, whether loaded or not."""
    names = {path.stem.removeprefix("lib").removeprefix("ggml-") for path in _folder().glob("*ggml-*")}
    return [registry for module, registry in _MODULES.items() if module in names]


def registries() -> list[int]:
    """Return the backends that are built in or loaded, including every RPC server added so far."""
    count = call("ggml_backend_reg_count", ctypes.c_size_t)
    return [call("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t(index)) for index in range(count)]


def devices() -> list[int]:
    """Return all of ggml's devices."""
    count = call("ggml_backend_dev_count", ctypes.c_size_t)
    return [call("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(index)) for index in range(count)]


def device_handles(names: Sequence[str]) -> list[int]:
    """Return the devices with these names. Raises LoadFailed if one is missing."""
    known = {device_name(device): device for device in devices()}
    if missing := [name for name in names if name not in known]:
        raise LoadFailed(
            f"llama.cpp has no device {', '.join(missing)} here; it has {', '.join(known)}.",
            hint="The devices may have changed: `edgechat device` lists them.",
        )
    return [known[name] for name in names]


def device_memory(device: int) -> int:
    """Return how many bytes are free on a device, according to its driver."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    places = map(ctypes.pointer, (free, total))
    call("ggml_backend_dev_memory", None, ctypes.c_void_p(device), *places)
    return free.value


def registry_name(registry: int) -> str:
    """Return a registry's name: 'CPU', 'CUDA', 'RPC', ..."""
    return text(ask("ggml_backend_reg_name", ctypes.c_char_p, registry))


def device_name(device: int) -> str:
    """Return a device's name: 'CPU', 'CUDA0', 'RPC1', ..."""
    return text(ask("ggml_backend_dev_name", ctypes.c_char_p, device))


def is_processor(device: int) -> bool:
    """Return True if a device is the CPU or one of its helpers (BLAS), which have no memory of their own."""
    return ask("ggml_backend_dev_type", ctypes.c_int, device) in (_CPU, _ACCELERATED_CPU)


def buffer_type_name(buffer_type: int) -> str:
    """Return a buffer type's name: 'CPU', 'CPU_REPACK', 'CUDA0', 'CUDA_Host', ..."""
    return text(ask("ggml_backend_buft_name", ctypes.c_char_p, buffer_type))


def holder(buffer_type: int) -> str:
    """Return the device whose memory a type of buffer uses: 'CPU' even for RAM pinned by a GPU's driver."""
    device = ask("ggml_backend_buft_get_device", ctypes.c_void_p, buffer_type)
    if not device or is_processor(device):
        return CPU
    pinned = ask("ggml_backend_dev_host_buffer_type", ctypes.c_void_p, device)
    return CPU if buffer_type == pinned else device_name(device)


def buffer_types() -> dict[str, str]:
    """Return the names of the buffer types of all devices except the CPU, keyed by device name."""
    return {
        device_name(device): buffer_type_name(ask("ggml_backend_dev_buffer_type", ctypes.c_void_p, device))
        for device in devices()
        if not is_processor(device)
    }
